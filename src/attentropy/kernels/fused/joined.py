"""Rows that see two intervals of keys, such as a window and the first keys: two passes, merged.

A kernel that takes one interval per row serves such a mask with its passes over both, whose row
states merge exactly (`core/states.py`).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from attentropy.core.call import Call, Rows
from attentropy.core.results import Attended, Stats
from attentropy.core.states import RowState, merge, read, rest_of, unread
from attentropy.kernels.mass import receiving, shares

OneInterval = Callable[[Call], Rows]


def attend(call: Call, one: OneInterval) -> Rows:
    """Output and statistics of every row; differentiable as `one` is.

    Args:
        call: a resolved call, of one interval per row or of two.
        one: gives the rows of a call of softmax attention whose mask has no predicate.
    """
    parts = call.seen.in_two()
    if parts is None:
        return one(call)
    wide = torch.promote_types(call.q.dtype, torch.float32)
    q, k, v = (x.to(wide) for x in call[:3])  # rounded once, after the merge
    exact = call._replace(q=q, k=k, v=v)
    first, second = (_state(exact._replace(seen=part), one) for part in parts)
    whole = merge(first, second)
    out, stats = read(whole)
    return Rows(
        out.to(call.v.dtype),
        stats.entropy,
        stats.lse,
        stats.max_logit,
        stats.argmax,
        stats.collision,
        log_l=rest_of(whole).log1p(),
        varentropy=stats.varentropy,
    )


def _state(call: Call, one: OneInterval) -> RowState:
    rows = one(call)
    stats = Stats(
        entropy=rows.entropy,
        lse=rows.lse,
        max_logit=rows.max_logit,
        argmax=rows.argmax,
        collision=rows.collision,
        visible=call.seen.visible.expand(call.q.shape[:3]),
        varentropy=rows.varentropy,
    )
    return unread(Attended(rows.out, stats), log_l=rows.log_l)


def key_mass(call: Call, one: OneInterval) -> Tensor:
    """sum_i p_ij [B,H,K]: the gradient of sum_i out_i with respect to values that are ones.

    Args:
        call: a resolved call.
        one: as in `attend`.
    """
    call = receiving(call)
    detached = call._replace(q=call.q.detach(), k=call.k.detach())
    with torch.enable_grad():
        ones = call.v.detach().requires_grad_()
        rows = attend(detached._replace(v=ones), one)
        kept = shares(call, rows).detach()
        (found,) = torch.autograd.grad((rows.out * kept).sum(), ones)
    return found[..., 0]
