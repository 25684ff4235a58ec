"""`python -m attentropy`, the same as the command attentropy."""

from attentropy.cli import main

main(prog_name="attentropy")
