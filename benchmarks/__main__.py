"""python -m benchmarks [...]: the same as `attentropy bench`."""

from attentropy.cli.machine.bench import command

if __name__ == "__main__":
    command()
