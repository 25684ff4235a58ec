"""`python -m attentropy`: the command line, where its script is not on the path."""

from attentropy.cli import main

if __name__ == "__main__":
    main(prog_name="attentropy")
