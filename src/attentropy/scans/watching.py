"""One watched forward pass -> the rows of every attention call, in order."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.scans.collect import noise_robustness


@dataclass(frozen=True)
class Observed:
    """One attention call: rows are [B, H, Q] by the name of their statistic."""

    name: str
    kind: str
    head_dim: int
    visible: Tensor
    rows: dict[str, Tensor]

    @property
    def heads(self) -> int:
        return self.visible.shape[1]

    @property
    def causal(self) -> bool:
        return bool((self.visible[..., 0] <= 1).all())


def observe(model: nn.Module, window: Tensor) -> tuple[list[Observed], Any]:
    seen: list[Observed] = []
    plain = F.scaled_dot_product_attention

    def tap(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        out = plain(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if enable_gqa:
            k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        s = (q @ k.mT).double() * (scale or q.shape[-1] ** -0.5)
        n = s.shape[-1]
        if is_causal:
            s = s.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)
        if attn_mask is not None:
            s = (
                s.masked_fill(~attn_mask, -torch.inf)
                if attn_mask.dtype == torch.bool
                else s + attn_mask
            )
        p = s.softmax(-1)
        visible = (s > -torch.inf).sum(-1)
        h = -torch.special.xlogy(p, p).sum(-1)
        c = p.square().sum(-1)
        i = torch.arange(n)
        d = (i[:, None] - i).abs().double()
        prev = p.diagonal(-1, -2, -1)
        rows = dict(
            entropy=h,
            normalized_entropy=h / visible.clamp(min=2).log(),
            perplexity=h.exp(),
            sparsity=1 / (visible * c).sqrt(),
            max_logit=s.amax(-1),
            top_probability=p.amax(-1),
            sink_mass=p[..., 0],
            output_norm=out.norm(dim=-1),
            gradient_flow=1 - c,
            noise_robustness=noise_robustness(c),
            distance=(p * d).sum(-1),
            previous_share=F.pad(prev, (1, 0)),
            received_concentration=(p.mean(-2)).square().sum(-1),
        )
        seen.append(Observed(f"call.{len(seen)}", "self", q.shape[-1], visible, rows))
        return out

    F.scaled_dot_product_attention = tap
    try:
        with torch.no_grad():
            return seen, model(window)
    finally:
        F.scaled_dot_product_attention = plain
