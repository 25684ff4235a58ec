"""Guards against exploding logits: clip the projections after a step, or bound them for good."""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from attentropy.core.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from attentropy.core.results import Stats
from attentropy.core.scores import Dot
from attentropy.distributed.groups import Group, peers
from attentropy.nn._checks import number
from attentropy.nn._phase import recomputing
from attentropy.nn.layers.invariant import EntropyInvariantAttention
from attentropy.nn.layers.multihead import MultiheadAttention


@torch.no_grad()
def qk_clip_(module: nn.Module, stats: Stats, limit: float, *, group: Group = None) -> Tensor:
    """Scale the q and k projections of heads whose largest logit passed `limit`, in place.

    Head h with largest logit m_h > limit gets f_h = limit / m_h, others 1: its queries are
    multiplied by f_h / sqrt(g) and its keys by sqrt(g), g the least f of the heads that share
    these keys, so that the scores of every head change by exactly f_h and heads below the limit
    stay as they are. Call it after the optimiser's step, with the statistics of that step.

    Under DDP and FSDP2 every rank of `group` (None: all of them) calls it, each with its own
    statistics: m_h is the largest of all ranks, so that replicas stay equal.

    Where a position bias is added to the logits, only the score changes.

    Args:
        module: a MultiheadAttention or EntropyInvariantAttention.
        stats: what its last forward pass returned.
        limit: the largest logit that is left alone; positive.
        group: whose ranks agree on the largest logits.

    Returns:
        f [H].
    """
    limit = number("qk_clip_: limit", limit, above=0.0)
    if not isinstance(module, MultiheadAttention | EntropyInvariantAttention):
        rule = "a MultiheadAttention or EntropyInvariantAttention"
        raise ArgumentTypeError("qk_clip_: module", rule, type(module).__name__)
    reason = clip_reason(module)
    if reason:
        raise UnsupportedError(f"qk_clip_ {reason}")
    mine = _largest(stats, module.num_heads)
    largest = torch.stack(peers(group).gather(mine)).amax(0)
    if not bool((largest < torch.inf).all()):
        raise ArgumentError("qk_clip_: the largest logits", "below inf, not NaN", largest.tolist())
    factor = limit / largest.clamp(min=limit)
    for parameter, by in projection_factors(module, factor):
        scale_rows_(parameter, by)
    return factor


def _largest(stats: Stats, heads: int) -> Tensor:
    """The largest logit of each head, [H]."""
    if not isinstance(stats, Stats):
        raise ArgumentTypeError("qk_clip_: stats", "statistics of attention", type(stats).__name__)
    if stats.max_logit is None or stats.max_logit.shape[1] != heads:
        got = None if stats.max_logit is None else stats.max_logit.shape[1]
        raise ArgumentError("qk_clip_: the heads of stats", f"{heads}", got)
    rows = stats.max_logit.transpose(0, 1).flatten(1)
    return rows.amax(1) if rows.shape[1] else rows.new_full((heads,), -torch.inf)


def clip_reason(module: MultiheadAttention | EntropyInvariantAttention) -> str:
    """Why the projections of a layer cannot be clipped; "" if they can.

    Args:
        module: the layer.
    """
    if isinstance(module, EntropyInvariantAttention):
        return ""
    if parametrize.is_parametrized(module):
        return "does not take parametrised projections (sigma_reparam)"
    if module.qk_norm is not None or not isinstance(module.score, Dot):
        return (
            "needs the dot score without qk_norm: otherwise logits do not follow the "
            "size of the projections"
        )
    return ""


def split_factors(factor: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """The factors of queries [H] and of keys [groups] whose product is that of the scores.

    Args:
        factor: of the scores of each head [H].
        groups: number of key heads; neighbouring heads share one.
    """
    shared = factor.view(groups, -1).amin(1).sqrt()
    return factor / shared.repeat_interleave(len(factor) // groups), shared


def projection_factors(module: nn.Module, factor: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Parameters of queries and keys of a layer, each with the factor of every row.

    Args:
        module: a MultiheadAttention or EntropyInvariantAttention.
        factor: of the scores of each head [H].
    """
    if isinstance(module, EntropyInvariantAttention):
        q, k = module.W_Q, module.W_K
        root = factor.sqrt().repeat_interleave(q.out_features // len(factor))
        return [(x, root) for x in (q.weight, q.bias, k.weight, k.bias)]
    assert isinstance(module, MultiheadAttention)
    rows, groups = module.projection_rows(), module.num_kv_heads
    each, shared = split_factors(factor, groups)
    queries = each.repeat_interleave(rows[0] // len(each))
    keys = shared.repeat_interleave(rows[1] // groups)
    packed = torch.cat([queries, keys, queries.new_ones(rows[2])])
    shift = [] if module.in_proj_bias is None else [(module.in_proj_bias, packed)]
    if module.in_proj_weight is not None:
        return [(module.in_proj_weight, packed), *shift]
    return [(module.q_proj_weight, queries), (module.k_proj_weight, keys), *shift]


def scale_rows_(parameter: Tensor, by_rows: Tensor) -> None:
    """Multiply each row by its factor; every rank has all factors, and maybe a part of the rows.

    Args:
        parameter: is changed in place.
        by_rows: the factor of every row.
    """
    by = by_rows.to(parameter.dtype).view(-1, *(1 for _ in parameter.shape[1:]))
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is not None:
        from torch.distributed.tensor import DTensor, Replicate

        by = DTensor.from_local(by, mesh, [Replicate()] * mesh.ndim, run_check=False)
    parameter.mul_(by)


def sigma_reparam(module: nn.Module, *, gain: float | None = 1.0) -> nn.Module:
    """Make each projection gain * W / sigma(W), with sigma(W) the largest singular value of W.

    Spectral norms are then the learned gains, whatever the optimiser does to W, and entropy cannot
    collapse faster than gains grow. sigma is followed by one power iteration for each forward pass
    in training.

    Queries, keys and values packed in one matrix are normalised each by itself. In the state dict
    `name` becomes `parametrizations.name.original`, with `.0.gain`, `.0.u` and `.0.v` beside it.

    Args:
        module: any module with linear projections; it is changed in place.
        gain: of each projection at first; None starts at sigma(W), which leaves the layer's
            function as it is.
    """
    if gain is not None:
        number("sigma_reparam: gain", gain, above=0.0)
    found = False
    for part in list(module.modules()):
        for name, rows in _weights_of(part):
            found = True
            _Sigma.onto(part, name, rows=rows, gain=gain)
    if not found:
        rule = "a module with linear projections that are not parametrised yet"
        raise ArgumentError("sigma_reparam: module", rule, type(module).__name__)
    return module


def _weights_of(part: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """Names of weight matrices, and the rows of those packed in them."""
    if parametrize.is_parametrized(part):
        return []
    if isinstance(part, nn.Linear):
        return [("weight", (part.out_features,))]
    if not isinstance(part, MultiheadAttention):
        return []
    if part.in_proj_weight is not None:
        return [("in_proj_weight", part.projection_rows())]
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    return [(name, (len(getattr(part, name)),)) for name in names]


class _Sigma(nn.Module):
    """gain_i * W_i / sigma(W_i) for each block of rows W_i."""

    u: Tensor
    v: Tensor

    def __init__(self, weight: Tensor, rows: tuple[int, ...]) -> None:
        super().__init__()
        self.rows = rows
        blocks = [torch.linalg.svd(w.float(), full_matrices=False) for w in weight.split(rows)]
        self.gain = nn.Parameter(torch.stack([s[0] for _, s, _ in blocks]).to(weight))
        self.register_buffer("u", torch.cat([u[:, 0] for u, _, _ in blocks]).to(weight))
        self.register_buffer("v", torch.stack([vh[0] for _, _, vh in blocks]).to(weight))

    @classmethod
    @torch.no_grad()
    def onto(cls, part: nn.Module, name: str, *, rows: tuple[int, ...], gain: float | None) -> None:
        """Parametrise a weight of a module."""
        weight: Tensor = getattr(part, name)
        sigma = cls(weight.detach(), rows)
        if gain is not None:
            sigma.gain.fill_(gain)
        parametrize.register_parametrization(part, name, sigma)

    def forward(self, weight: Tensor) -> Tensor:
        """The normalised weight."""
        if self.training and not recomputing():
            self._follow(weight.detach())
        blocks = weight.split(self.rows)
        ends = zip(blocks, self.u.split(self.rows), self.v, self.gain, strict=True)
        return torch.cat([w * (g / (u.clone() @ w @ v.clone())) for w, u, v, g in ends])

    @torch.no_grad()
    def _follow(self, weight: Tensor) -> None:
        """One power iteration."""
        for i, (w, u) in enumerate(
            zip(weight.split(self.rows), self.u.split(self.rows), strict=True)
        ):
            v = nn.functional.normalize(u @ w, dim=0)
            self.v[i].copy_(v)
            u.copy_(nn.functional.normalize(w @ v, dim=0))
