"""Does the folder that `attentropy extend --export` wrote read as well in stock transformers?

    python -m benchmarks.exported longer --record extend/extend.json --text book.txt

The model is loaded and run by transformers with its own sdpa attention; attentropy only makes the
same texts with the same passkeys again, from the record of the extension. Printed are the loss of
the last tokens and the passkeys, text by text, beside those that the record has for the choice.
"""

import argparse
import copy
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from attentropy.extensions import passkeys
from attentropy.extensions.passkeys import Haystack
from attentropy.extensions.record import Record
from attentropy.extensions.result import Extension

CHUNK = 1024


def texts_of(record: Record, files: list[Path], tokenizer) -> list[Haystack]:
    """The texts that the extension has judged with, passkeys included."""
    encode = lambda text: tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]  # noqa: E731
    ids = torch.tensor(encode("\n".join(file.read_text(encoding="utf-8") for file in files)))
    to, count = record.task.to, 1 + max(trial.window for trial in record.trials)
    starts = torch.linspace(len(ids) // 4, len(ids) - to, count).long().tolist()
    return [
        passkeys.hidden(ids[a : a + to], encode, length=to, last=record.last, seed=i)
        for i, a in enumerate(starts)
    ]


@torch.no_grad()
def read(model, ids: torch.Tensor, last: int):
    """The mean loss of the last tokens, and the cache after all of them."""
    cache, losses = None, []
    for start in range(0, len(ids), CHUNK):
        part = ids[None, start : start + CHUNK]
        output = model(part, past_key_values=cache, use_cache=True)
        cache, targets = output.past_key_values, ids[start + 1 : start + 1 + CHUNK]
        losses.append(F.cross_entropy(output.logits[0, : len(targets)], targets, reduction="none"))
    return float(torch.cat(losses)[-last:].double().mean()), cache


@torch.no_grad()
def ask(model, cache, question) -> tuple[float, bool]:
    """Mean loss of the digits, and whether each was the most likely one."""
    own = copy.copy(cache)
    own.layers = [copy.copy(layer) for layer in cache.layers]
    given = torch.cat([question.prompt, question.answer])[None]
    logits = model(given, past_key_values=own, use_cache=True).logits[0]
    scores = logits[len(question.prompt) - 1 : -1]
    hit = bool((scores.argmax(-1) == question.answer).all())
    return float(F.cross_entropy(scores, question.answer)), hit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", type=Path, required=True, help="extend.json of the extension")
    parser.add_argument("--text", type=Path, action="append", required=True)
    given = parser.parse_args()
    record = Record.load(given.record)
    tokenizer = AutoTokenizer.from_pretrained(given.folder)
    model = AutoModelForCausalLM.from_pretrained(given.folder, dtype=torch.float32).eval()
    best = Extension(record, model, exported=True).best
    assert best is not None
    known = {trial.window: trial for trial in record.of(best.name)}
    print(best.name, model.config.rope_parameters, model.config._attn_implementation, flush=True)
    for window, text in enumerate(texts_of(record, given.text, tokenizer)):
        loss, cache = read(model, text.cut(record.task.to), record.last)
        answers = [ask(model, cache, question) for question in text.questions]
        digits = sum(one for one, _ in answers) / len(answers)
        there = known[window]
        print(
            f"text {window + 1}: loss {loss:.4f} ({sum(there.losses) / len(there.losses):.4f} in "
            f"the record), {sum(hit for _, hit in answers)} ({sum(there.hits)}) of {len(answers)} "
            f"passkeys, digits {digits:.4f} ({sum(there.digits) / len(there.digits):.4f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
