"""docs/models.md: which models are exact, from the caches of the zoo."""

import textwrap
from collections import Counter

NONE = ("not built", "no attention", "not repeatable", "harness")
HEAD = """# Models

Architectures of transformers {version}, and models of other libraries, are built small with random
weights and run in double: plain, watched, with a steering that changes nothing (`temperature=1.0`), and
undone. The entropies that `at.watch` reports are compared with those of every softmax that torch
computed, seen by a dispatch mode that shares no code with the library. This page is written by

```sh
python -m tests.models.zoo --jobs 2 --page docs/models.md
```

which continues where it stopped: `build/zoo` holds one JSON line per model. `--only bert,llama --again` tries
some of them anew.

A model is **exact** if its output is unchanged (1e-6 of its largest value; 1e-3 for the few that run in
single precision only), if `undo()` restores every bit, and if every attention operator that ran is
recorded with its entropies to 2e-5 and its number of rows. *Unseen, named*: some operators were not
recorded, and the watch says so. *Pooled*: numbers of several operators stand in one row. *False rows*:
rows of something that is not attention. Weights are random, with a gain of 1.5; five models (mobilebert,
patchtst, superglue, timm davit_tiny and visformer_tiny) have a gain of 0.3, because with more one key
takes all of each row. With 1.5 superglue and visformer_tiny had other numbers of rows than the oracle.
"""


def page(transformers, libraries, *, version, listed, now):
    """The text of the page.

    Args:
        transformers: records of its architectures.
        libraries: records of models of other libraries.
        version: of transformers.
        listed: number of its architectures that have a model of their own.
        now: state of the code, as records have it.
    """
    parts = [HEAD.format(version=version)]
    rest = REST if len(transformers) < listed else "."
    hold = (
        f"The tables hold {len(transformers)} of the {listed} architectures that transformers lists"
    )
    told = f"{hold}{rest} {states([*transformers, *libraries], now)}"
    parts.append(textwrap.fill(told, 105, break_long_words=False) + "\n")
    parts.append(summary("transformers", transformers))
    parts += [summary("other libraries", libraries), "## Other libraries\n", table(libraries)]
    parts += ["## transformers\n", table([r for r in transformers if r["verdict"] != "not built"])]
    unbuilt = [r for r in transformers if r["verdict"] == "not built"]
    if unbuilt:
        parts += ["## Not built\n", UNBUILT, reasons(unbuilt), table(unbuilt)]
    return "\n".join(parts)


REST = "; the command above continues with the rest."
STATE = (
    "Each record names the state of the code that it was made with, by a hash of the sources that "
    "watch, steer and measure (`runner.state`): "
)


ALL = (
    "All records were made with one state of the code, named by a hash of the sources that watch, "
    "steer and measure (`runner.state`):"
)


def states(records, now):
    """How many records were made with which state of the code, in words."""
    counts = Counter(f"`{r['state']}`" if r.get("state") else EARLIER for r in records)
    if len(counts) == 1:
        (name,) = counts
        same = "that of this tree" if name == f"`{now}`" else f"and that of this tree is `{now}`"
        return f"{ALL} {name}, {same}."
    told = [f"{counts.pop(f'`{now}`', 0)} with that of this tree, `{now}`"]
    told += [f"{count} with {name}" for name, count in counts.most_common()]
    return f"{STATE}{', '.join(told)}. No whole census has run on one state."


EARLIER = "one of a day before, whose name was not kept"
UNBUILT = """The harness makes configurations and inputs from the names of fields and arguments. For these
architectures it found none that runs; nothing is said of them.
"""


REASONS = {
    "ImportError": "need a package that is not installed here",
    "MemoryError": "are too large (over 65 million parameters) in the smallest form that was found",
    "no inputs are known": "take inputs that the harness does not know",
    "took more than": "took more than a minute",
    "": "have fields or inputs that must agree with one another in a way that was not found",
}


def reasons(records):
    """How many were not built for which reason, in a sentence."""
    found = (next(sign for sign in REASONS if sign in r["why"]) for r in records)
    counts = Counter(found).most_common()
    told = "; ".join(f"{count} {REASONS[sign]}" for sign, count in counts)
    return textwrap.fill(f"Of {len(records)}, {told}.", 105) + "\n"


def summary(what, records):
    """Counts, with the share of models with attention that are exact."""
    counts = Counter(r["verdict"] for r in records)
    attending = [r for r in records if r["verdict"] not in NONE]
    exact = sum(r["verdict"] == "exact" for r in attending)
    share = f"{exact} of {len(attending)} ({exact / max(1, len(attending)):.1%})"
    lines = [f"**{what}**: {len(records)} models; exact {share} of those with attention.\n"]
    lines += ["| verdict | models |", "|---|---|"]
    lines += [f"| {name} | {count} |" for name, count in counts.most_common()]
    return "\n".join(lines) + "\n"


def table(records):
    """One line for each model."""
    lines = [
        "| architecture | model | kinds | operators | verdict | why |",
        "|---|---|---|---|---|---|",
    ]
    for r in sorted(records, key=lambda r: r["architecture"].lower()):
        cells = r["architecture"], r["model"], ", ".join(r["kinds"]), r["operators"], r["verdict"]
        lines.append("| " + " | ".join(map(str, cells)) + f" | {_plain(r['why'])} |")
    return "\n".join(lines) + "\n"


def _plain(text):
    """Text for one cell of a table."""
    text = " ".join(str(text).split())[:160]
    for sign in "|<>*_`[]{}$\\":
        text = text.replace(sign, f"&#{ord(sign)};")
    return text
