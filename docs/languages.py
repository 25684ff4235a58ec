"""Two trees, one site: every English page has a Chinese one in docs/zh, and each links the other.

The navigation of mkdocs.yml is that of the English pages; the Chinese one has the same pages in
the same order, with the titles of TITLES. A Chinese page says in its front matter which state of
the English page it was translated from:

    translated-from: 1f0c3a9b2d4e

or, where it tells less than the English one and links it, `abridged: true`. Pages that a program
writes in both languages say neither.

python docs/languages.py               lists pages whose English has changed since
python docs/languages.py --mark PAGES  writes the present state into pages that are up to date
"""

import hashlib
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
CHINESE = "zh/"
MARK = re.compile(r"\A---\ntranslated-from: (\w+)\n---\n+")
ALONE = ("results/",)  # runs of the lab, which have no prose
TITLES = {
    "Home": "首页",
    "Tutorial": "教程",
    "Tutorials": "教程",
    "Ten minutes, with the model that comes along": "十分钟，用自带的模型",
    "SmolLM2, from a scan to a longer checkpoint": "SmolLM2：从扫描到更长的检查点",
    "MiniLM, where nothing is wrong": "MiniLM：一切正常",
    "A training run, cured": "救回一次训练",
    "Findings": "诊断结果",
    "All": "全部",
    "Not finite": "数值非有限",
    "Exploding logits": "logit 爆炸",
    "Large logits": "logit 偏大",
    "Collapsed": "坍缩",
    "Dead": "失效",
    "Cannot focus": "无法集中",
    "Near uniform": "近乎均匀",
    "Saturated": "饱和",
    "Sink": "注意力汇",
    "Duplicates": "重复",
    "Positional only": "只看位置",
    "Entropy grows with length": "熵随长度增长",
    "Logit growth": "logit 增长",
    "Entropy collapse": "熵坍缩",
    "How to": "操作指南",
    "Watch a Hugging Face run": "观测 Hugging Face 训练",
    "Watch a Lightning run": "观测 Lightning 训练",
    "Watch a plain loop": "观测普通训练循环",
    "See the words": "看清词语",
    "Extend the context": "扩展上下文",
    "Stop a collapse": "阻止坍缩",
    "Control the entropy": "控制熵",
    "Attention out of parts": "用部件搭建注意力",
    "Your own parts": "自制部件",
    "Long sequences": "长序列",
    "Several machines": "多台机器",
    "Run an experiment": "运行实验",
    "Reference": "参考",
    "Commands": "命令",
    "The scan": "扫描",
    "Thresholds": "阈值",
    "scan.json": "scan.json",
    "Statistics": "统计量",
    "Attention": "注意力",
    "Masks": "掩码",
    "Scales, scores, weights": "缩放、分数与权重",
    "Row states": "行状态",
    "Models": "模型",
    "Training": "训练",
    "Modules": "模块",
    "Analysis": "分析",
    "Ring attention": "环形注意力",
    "Closed forms": "闭式公式",
    "Closed forms, functions": "闭式公式：函数",
    "Scans and reports": "扫描与报告",
    "The lab": "实验室",
    "Errors and health": "错误与自检",
    "Explanation": "原理",
    "The mathematics, with its corrections": "数学，以及更正",
    "Why log n, and when not": "为什么是 log n，何时不是",
    "The CPU kernel": "CPU 内核",
    "The GPU kernel": "GPU 内核",
    "Beyond one process": "超出单个进程",
    "Reliability": "可靠性",
    "The embedded model": "自带的模型",
    "Results": "结果",
    "Claims, measured": "论断核查",
    "Results of the lab": "实验结果",
    "Models, tried": "试过的模型",
    "Examples": "示例",
    "Gallery": "图库",
    "Glossary": "术语表",
    "Contributing": "参与开发",
    "Architecture": "架构",
    "Sections of the documents": "文档各节",
}


def state_of(text: str) -> str:
    """A short hash of a page, spaces at the ends of lines left out.

    Args:
        text: of the English page.
    """
    plain = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return hashlib.sha256(plain.encode()).hexdigest()[:12]


def stale() -> dict[str, str]:
    """Pages that want a translator: by path, with the reason."""
    found = {}
    for page in sorted(DOCS.rglob("*.md")):
        name = page.relative_to(DOCS).as_posix()
        if name.startswith((CHINESE, *ALONE)):
            continue
        chinese = DOCS / CHINESE / name
        mark = MARK.match(chinese.read_text(encoding="utf-8")) if chinese.exists() else None
        if not chinese.exists():
            found[name] = "there is no Chinese page"
        elif mark is None and is_written(chinese):
            continue
        elif mark is None or mark[1] != state_of(page.read_text(encoding="utf-8")):
            found[name] = "the English page has changed"
    return found


def is_written(page: Path) -> bool:
    """True for pages that a program writes, and for those that only summarise the English one.

    Args:
        page: in Chinese.
    """
    text = page.read_text(encoding="utf-8")
    return "<!-- written by " in text or text.startswith("---\nabridged: true\n---\n")


def mark(names: list[str]) -> None:
    """Write the state of the English pages into their translations.

    Args:
        names: paths below docs, of the English pages.
    """
    for name in names:
        chinese = DOCS / CHINESE / name
        text = MARK.sub("", chinese.read_text(encoding="utf-8"))
        now = state_of((DOCS / name).read_text(encoding="utf-8"))
        chinese.write_text(f"---\ntranslated-from: {now}\n---\n\n{text}", encoding="utf-8")


def on_config(config: Any, **_: Any) -> Any:
    """Called by mkdocs first: adds the Chinese pages to the navigation."""
    config.nav = [*config.nav, {"中文": _chinese(config.nav)}]
    return config


def _chinese(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same navigation of the Chinese pages; what nobody has translated yet is left out."""
    found = []
    for item in items:
        ((title, inside),) = item.items()
        if isinstance(inside, list):
            found.append({TITLES.get(title, title): _chinese(inside)})
        elif (DOCS / CHINESE / inside).exists():
            found.append({TITLES.get(title, title): CHINESE + inside})
    return found


def on_page_context(context: dict[str, Any], page: Any, config: Any, nav: Any) -> dict[str, Any]:
    """Called by mkdocs for every page: its own language, the pages of that, a link to the other."""
    from mkdocs.structure.nav import Navigation

    path = page.file.src_uri
    chinese = path.startswith(CHINESE)
    config.theme["language"] = "zh" if chinese else "en"
    english = page.url.removeprefix(CHINESE) if chinese else page.url
    both = chinese or (DOCS / CHINESE / path).exists()
    config.extra["alternate"] = [
        {"name": "English", "link": english or ".", "lang": "en"},
        {"name": "中文", "link": CHINESE + english if both else CHINESE, "lang": "zh"},
    ]
    *ours, theirs = nav.items
    items = theirs.children if chinese else ours
    context["nav"] = Navigation(items, nav.pages)
    return context


if __name__ == "__main__":
    if sys.argv[1:2] == ["--mark"]:
        mark(sys.argv[2:])
    behind = stale()
    for page_name, reason in behind.items():
        print(f"{page_name}: {reason}")
    sys.exit(bool(behind))
