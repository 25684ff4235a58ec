"""Gradients of everything that logits are made of, from those of the logits, tile by tile."""

import torch
from torch import Tensor

from attentropy.core.weights import Gumbel
from attentropy.kernels.packing import INPUTS
from attentropy.kernels.passes import InputGradients, Needs
from attentropy.kernels.tiled.logits import MANY, columns
from attentropy.kernels.tiled.tiles import RowBlock, Tiler, product, seen_product, vector_rows


class GradientSums:
    """Sums the gradients of everything the logits are made of, tile by tile."""

    def __init__(self, tiler: Tiler, needs: Needs) -> None:
        call = tiler.call
        self.tiler, self.needs = tiler, needs
        zeros = {"q": tiler.q, "k": tiler.k, "v": tiler.v, "scale": tiler.scale}
        tables = {"bias": call.bias, "relative": call.relative, "additive": call.additive}
        zeros |= {name: table for name, table in tables.items() if table is not None}
        self.of = {
            name: torch.zeros(x.shape, dtype=tiler.dtype, device=x.device)
            for name, x in zeros.items()
            if needs[name]
        }

    def found(self) -> InputGradients:
        """Gradients of INPUTS in their shapes and dtypes, None where not needed."""
        inputs = ((name, getattr(self.tiler.call, name)) for name in INPUTS)
        return tuple(
            self.of[name].sum_to_size(x.shape).to(x.dtype) if name in self.of else None
            for name, x in inputs
        )

    def add(self, block: RowBlock, keys: slice, ds: Tensor) -> None:
        """Send the gradient of a tile's logits [N, R, T] on; `ds` is overwritten."""
        tiler, call = self.tiler, self.tiler.call
        if isinstance(call.weights, Gumbel):
            ds.div_(call.weights.tau)
        ds4 = tiler.four(block, ds)
        if "bias" in self.of:
            part = tiler.span(block, keys).of(self.of["bias"])
            part.add_(ds4.sum_to_size(part.shape))
        if "relative" in self.of:
            self._add_relative(block, keys, ds4)
        if any(name in self.of for name in ("q", "k", "scale", "additive")):
            if call.softcap is not None:
                capped = product(tiler, block, keys).div_(call.softcap).tanh_()
                ds.mul_(1 - capped.square())
                if tiler.tainted:
                    tiler.hide(block, keys, ds4, 0.0)
            self._add_product(block, keys, ds)

    def _add_relative(self, block: RowBlock, keys: slice, ds4: Tensor) -> None:
        total = self.of["relative"]
        per_head = ds4.sum(0)
        if len(total) == 1:
            per_head = per_head.sum(0, keepdim=True)
        rows = total[self.tiler.heads_of(block)] if len(total) > 1 else total
        terms = self.tiler.terms.select(self.tiler.span(block, keys))
        at = columns(terms).flatten()
        rows.index_add_(1, at, per_head.flatten(1))

    def _add_product(self, block: RowBlock, keys: slice, dx: Tensor) -> None:
        tiler = self.tiler
        q = tiler.wide_rows(block, tiler.q)
        scale = tiler.rows(block, tiler.scale)
        if tiler.call.additive is not None:
            self._add_additive(block, keys, dx, q, scale)
            return
        k = tiler.keyed(block, keys, tiler.k)
        seen = tiler.seen(block, keys) if tiler.tainted else None
        if "q" in self.of or "scale" in self.of:
            g = torch.bmm(dx, k) if seen is None else seen_product(dx, k, seen)
            if "scale" in self.of:
                self._add_rows("scale", block, (g * q).sum(-1))
            if "q" in self.of:
                self._add_rows("q", block, g * scale)
        if "k" in self.of:
            q = tiler.wide_rows(block, tiler.scaled)
            g = torch.bmm(dx.mT, q) if seen is None else seen_product(dx.mT, q, seen.mT)
            tiler.add_keyed(block, keys, self.of["k"], g)

    def _add_additive(
        self, block: RowBlock, keys: slice, dx: Tensor, q: Tensor, scale: Tensor
    ) -> None:
        tiler = self.tiler
        k = tiler.keyed(block, keys, tiler.k)
        vector = vector_rows(tiler, block)
        step = max(1, MANY // max(1, q.numel()))
        seen = tiler.seen(block, keys) if tiler.tainted else None
        for start in range(0, k.shape[1], step):
            part = slice(keys.start + start, keys.start + min(start + step, k.shape[1]))
            hidden = (q[:, :, None] + k[:, None, start : start + step]).tanh_()
            if seen is not None:
                hidden.masked_fill_(~seen[..., start : start + step, None], 0.0)
            raw = dx[..., start : start + step]
            if "scale" in self.of:
                x = torch.einsum("nrth,nrh->nrt", hidden, vector)
                self._add_rows("scale", block, (raw * x).sum(-1))
            raw = raw * scale
            if "additive" in self.of:
                self._add_vector(block, torch.einsum("nrth,nrt->nrh", hidden, raw))
            slope = (1 - hidden.square_()).mul_(vector[:, :, None]).mul_(raw[..., None])
            if "q" in self.of:
                self._add_rows("q", block, slope.sum(2))
            if "k" in self.of:
                tiler.add_keyed(block, part, self.of["k"], slope.sum(1))

    def _add_vector(self, block: RowBlock, value_NRH: Tensor) -> None:
        b, h, r = block.count
        per_head = value_NRH.view(b, h * self.tiler.group, r, -1).sum((0, 2))
        total = self.of["additive"]
        rows = total[self.tiler.heads_of(block)] if len(total) > 1 else total
        rows.add_(per_head.sum_to_size(rows.shape))

    def _add_rows(self, name: str, block: RowBlock, value: Tensor) -> None:
        part = self.tiler.part(block, self.of[name])
        part.add_(value.reshape(part.shape))
