"""What the embedded model can do, and what length does to it, before and after a scale rule.

A rule multiplies the queries of a layer: `rule(layer, n)` takes n, the keys each row sees [Q],
and gives factors that broadcast to [H, Q]; `steered_by` makes a rule of scales of the library.
All losses are in nats per byte.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.core.errors import ArgumentError
from attentropy.core.scales import ScaleRule
from attentropy.lab.embedded.model import BYTES, EmbeddedModel

Rule = Callable[[int, Tensor], Tensor]
JUDGED = 64  # bytes at the end of every window that are scored, whatever its length


def steered_by(model: EmbeddedModel, *scales: ScaleRule) -> Rule:
    """The rule with the same effect as scales of the library.

    Args:
        model: the embedded model.
        scales: one scale for all layers, or one for each.
    """
    root = model.shape.head_dim**0.5
    each = scales * len(model.layers) if len(scales) == 1 else scales
    if len(each) != len(model.layers):
        raise ArgumentError("scales", f"1 or {len(model.layers)} in number", len(scales))
    return lambda layer, n: each[layer](model.shape.head_dim, n) * root


@contextmanager
def intercepted(
    model: EmbeddedModel, see: Callable[[int, Tensor, Tensor], Tensor]
) -> Iterator[None]:
    """Inside the block, `see(layer, q, k)` replaces the queries of every attention call.

    Args:
        model: the embedded model.
        see: gives the queries to use.
    """
    plain, layer = F.scaled_dot_product_attention, 0

    def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        nonlocal layer
        q = see(layer, q, k)
        layer = (layer + 1) % len(model.layers)
        return plain(q, k, v, **options)

    F.scaled_dot_product_attention = attention  # type: ignore[assignment]
    try:
        yield
    finally:
        F.scaled_dot_product_attention = plain


@torch.no_grad()
def byte_losses(model: EmbeddedModel, rows: Tensor, rule: Rule | None = None) -> Tensor:
    """Loss of each of the n predictions, [B, n].

    Args:
        model: the embedded model.
        rows: bytes [B, n + 1].
        rule: factor on the queries; None changes nothing.
    """

    def scaled(layer: int, q: Tensor, k: Tensor) -> Tensor:
        n = torch.arange(1, q.shape[2] + 1, dtype=q.dtype)
        return q if rule is None else q * rule(layer, n)[..., None]

    with intercepted(model, scaled):
        parts = [
            F.cross_entropy(model(part[:, :-1]).transpose(1, 2), part[:, 1:], reduction="none")
            for part in rows.split(max(1, 8192 // rows.shape[1]))
        ]
    return torch.cat(parts)


def windows(data: bytes, length: int, *, count: int = 64, longest: int = 1024) -> Tensor:
    """[count, length + 1] bytes; the windows of every length end at the same places.

    Args:
        data: text.
        length: bytes that the model reads.
        count: number of windows.
        longest: largest length that is compared.
    """
    text = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
    ends = torch.linspace(longest + 1, len(text), count).long()
    return text[ends[:, None] - torch.arange(length, -1, -1) - 1]


def repeats(data: bytes, length: int, *, count: int = 64, longest: int = 1024) -> Tensor:
    """[count, length + 1] bytes: a piece of length/2 of text, twice (and its first byte again).

    Args:
        data: text.
        length: bytes that the model reads.
        count: number of windows.
        longest: largest length that is compared.
    """
    piece = windows(data, length // 2, count=count, longest=longest)[:, 1:]
    return torch.cat([piece, piece, piece[:, :1]], 1)


def text_loss(
    model: EmbeddedModel, data: bytes, length: int, rule: Rule | None = None, *, count: int = 64
) -> float:
    """Mean loss of the last 64 bytes of windows of `length`: the same bytes for any length.

    Args:
        model: the embedded model.
        data: text.
        length: bytes that the model reads.
        rule: factor on the queries; None changes nothing.
        count: number of windows.
    """
    return byte_losses(model, windows(data, length, count=count), rule)[:, -JUDGED:].mean().item()


def copy_loss(
    model: EmbeddedModel, data: bytes, length: int, rule: Rule | None = None, *, count: int = 64
) -> float:
    """Mean loss of the last 64 bytes of a text that appears twice: how well the model copies.

    Args:
        model: the embedded model.
        data: text.
        length: bytes that the model reads.
        rule: factor on the queries; None changes nothing.
        count: number of windows.
    """
    losses = byte_losses(model, repeats(data, length, count=count), rule)
    return losses[:, -JUDGED - 1 : -1].mean().item()


@dataclass(frozen=True)
class HeadProfile:
    """Per layer and head [L, H], over the last 64 rows: what the attention looks at."""

    induction: Tensor
    previous: Tensor
    first: Tensor
    entropy: Tensor
    spread: Tensor  # standard deviation of a row's scaled logits


@torch.no_grad()
def head_profile(model: EmbeddedModel, rows: Tensor, rule: Rule | None = None) -> HeadProfile:
    """Attention shares on `rows` [B, n]; induction means n/2 - 1 back (see `repeats`).

    Args:
        model: the embedded model.
        rows: bytes [B, n].
        rule: factor on the queries; None changes nothing.
    """
    if rows.shape[1] < 2 * JUDGED:
        raise ArgumentError("rows", f"at least {2 * JUDGED} bytes long", rows.shape[1])
    found: list[tuple[Tensor, ...]] = []

    def look(layer: int, q: Tensor, k: Tensor) -> Tensor:
        n = torch.arange(1, q.shape[2] + 1, dtype=q.dtype)
        q = q if rule is None else q * rule(layer, n)[..., None]
        found.append(_shares(q, k))
        return q

    with intercepted(model, look):
        model(rows)
    return HeadProfile(*(torch.stack(column) for column in zip(*found, strict=True)))


def _shares(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    n, places = q.shape[2], torch.arange(q.shape[2] - JUDGED, q.shape[2])
    logits = q[:, :, places] @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    seen = torch.arange(n) <= places[:, None]
    p = logits.masked_fill(~seen, -torch.inf).softmax(-1)
    mean = (logits * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
    variance = ((logits - mean).square() * seen).sum(-1) / seen.sum(-1)

    def back(distance: int) -> Tensor:
        keys = (places - distance).expand(*p.shape[:2], JUDGED)[..., None]
        return p.gather(3, keys).mean((0, 2, 3))

    first = p[..., 0].mean((0, 2))
    entropy = torch.special.entr(p).sum(-1).mean((0, 2))
    return back(n // 2 - 1), back(1), first, entropy, variance.mean((0, 2)).sqrt()


def count_losses(train: bytes, held_out: bytes) -> tuple[float, float]:
    """Losses of byte and byte-pair frequencies (add 1/256), which a trained model must beat.

    Args:
        train: text whose frequencies are counted.
        held_out: text that is judged.
    """
    seen, judged = (
        torch.frombuffer(bytearray(t), dtype=torch.uint8).long() for t in (train, held_out)
    )
    pairs = torch.bincount(seen[:-1] * BYTES + seen[1:], minlength=BYTES**2).view(BYTES, BYTES)
    pairs = pairs.double() + 1 / BYTES
    unigram = (pairs.sum(0) / pairs.sum()).log()
    bigram = (pairs / pairs.sum(1, keepdim=True)).log()
    return -unigram[judged].mean().item(), -bigram[judged[:-1], judged[1:]].mean().item()
