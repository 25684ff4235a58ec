"""Write both pages of the glossary from one list, docs/terms.json.

python docs/glossary_page.py > docs/glossary.md
python docs/glossary_page.py zh > docs/zh/glossary.md
"""

import json
import sys
from pathlib import Path

MARK = "<!-- written by docs/glossary_page.py from docs/terms.json -->"
HEADS = {
    "en": """# Glossary

One word for one thing; this page and the Chinese one come from one list.

| English | 中文 | meaning |
""",
    "zh": """# 术语表

一个概念只用一个词；本页与英文页由同一份清单生成。

| 中文 | English | 含义 |
""",
}
COLUMNS = {"en": ("english", "chinese", "meaning"), "zh": ("chinese", "english", "explained")}


def page(language: str = "en") -> str:
    """The text of docs/glossary.md, or of its Chinese page.

    Args:
        language: "en" or "zh".
    """
    terms = json.loads(Path(__file__).with_name("terms.json").read_text(encoding="utf-8"))
    rows = [[term[name] for name in COLUMNS[language]] for term in terms]
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{MARK}\n\n{HEADS[language]}|---|---|---|\n{lines}"


if __name__ == "__main__":
    sys.stdout.write(page(*sys.argv[1:]))
