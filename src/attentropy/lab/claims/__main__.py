"""Write the page of claims: python -m attentropy.lab.claims [docs/claims.md]."""

import sys
from pathlib import Path

from attentropy.lab.claims import CLAIMS, run
from attentropy.lab.claims.page import render

if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/claims.md")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(render(list(run(CLAIMS.values()))), encoding="utf-8")
    print(target)
