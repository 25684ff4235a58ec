"""Write the pages of claims: python -m attentropy.lab.claims [docs]."""

import sys
from pathlib import Path

from attentropy.lab.claims import CLAIMS, run
from attentropy.lab.claims.page import render

if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    measured = list(run(CLAIMS.values()))
    for language, name in (("en", "claims.md"), ("zh", "zh/claims.md")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(render(measured, language), encoding="utf-8")
        print(target)
