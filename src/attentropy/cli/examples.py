"""Examples at the end of each command's help; a test asks that every command has some."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "scan": (
        "attentropy scan",
        "attentropy scan models/my-llama --text book.txt --out scan",
        "attentropy scan model.gguf --lengths 512,2048,8192 --calibrate",
        "attentropy scan after/ --compare before/scan.json",
    ),
    "text": (
        'attentropy text --prompt "To be, or not to be"',
        "attentropy text models/my-llama --text letter.txt --out text",
        'attentropy text models/my-llama --prompt "Once upon a time" --generate 200',
        "attentropy text models/my-vit --image cat.jpg",
        "attentropy text model.gguf --text book.txt --length 4096 --heads 3.5,12.0",
    ),
    "compare": (
        "attentropy compare before after --out compare",
        "attentropy compare step-100 step-200 step-300/scan.json --json",
    ),
    "extend": (
        "attentropy extend models/my-llama --to 16384 --text book.txt",
        "attentropy extend model.gguf --to 12288 --text book.txt --export longer",
        "attentropy extend model.gguf --to 12288 --text book.txt --out extend --resume",
    ),
    "report": (
        "attentropy report my-run",
        "attentropy report scan/scan.json --out scan.html",
    ),
    "serve": (
        "attentropy serve",
        "attentropy serve results --port 9000",
        "attentropy serve models/my-llama --text letter.txt",
    ),
    "runs": ("attentropy runs", "attentropy runs --dir attentropy_runs --json"),
    "watch": ("attentropy watch my-run", "attentropy watch my-run --once"),
    "export": (
        "attentropy export my-run --out my-run.csv",
        "attentropy export my-run --parquet",
        "attentropy export my-run --json | jq length",
    ),
    "theory": (
        "attentropy theory",
        "attentropy theory S_relu2",
        "attentropy theory S_relu2 beta=-1 gamma=2",
    ),
    "claims": (
        "attentropy claims",
        "attentropy claims --source 001",
        "attentropy claims --id '001-(61)' --json",
    ),
    "curves": ("attentropy curves --list", "attentropy curves --only entropy_length --out figures"),
    "lab": (
        "attentropy lab list",
        "attentropy lab noise --quick",
        "attentropy lab noise --seeds 5 --out results/noise --resume",
    ),
    "doctor": ("attentropy doctor", "attentropy doctor --json"),
    "bench": (
        "attentropy bench --quick",
        "attentropy bench --only fused --json > bench.json",
        "attentropy bench --device cuda",
    ),
}


def epilog(name: str) -> str | None:
    """The examples of a command, as click prints them line by line.

    Args:
        name: of the command.
    """
    lines = EXAMPLES.get(name)
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines) if lines else None
