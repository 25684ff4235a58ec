"""What attention really ran: every softmax that torch computed, seen below autograd.

`listen(model)` runs the operators of torch as they are and keeps the weights of each softmax, however
it was called or written, with the modules that were running. A softmax is attention where its weights
enter a matrix product afterwards, and dot attention where its logits came out of a product of two
activations. Nothing here is shared with the library.
"""

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
SOFTMAX = {aten._softmax.default, aten._safe_softmax.default}
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
PRODUCTS = {
    aten.bmm.default,
    aten.mm.default,
    aten.baddbmm.default,
    aten.addmm.default,
    aten.matmul.default,
    aten.mv.default,
}
CARRIED = {
    "mul",
    "div",
    "add",
    "sub",
    "masked_fill",
    "masked_fill_",
    "where",
    "clone",
    "_to_copy",
    "copy_",
    "tanh",
    "clamp",
    "maximum",
    "minimum",
    "constant_pad_nd",
    "cat",
    "index",
    "gather",
    "mul_",
    "add_",
    "div_",
    "sub_",
    "native_dropout",
    "neg",
    "exp",
    "nan_to_num",
    "stack",
    "scatter",
    "index_put",
    "rsub",
    "index_select",
    "relu",
    "im2col",
    "flip",
}
NEGLIGIBLE = 1e-40  # of a weight: exp(-100) hides a key, as models mean it
NOTHING = -9000.0  # a row whose logits are all below it sees no key, as models mean it


@dataclass
class Weights:
    """The weights of one softmax.

    Attributes:
        path: names of the modules that were running, the innermost last.
        call: number of the innermost module's call, from 1.
        entropy: of every row [..., Q].
        visible: number of keys with weight, of every row.
        dot: whether the logits came out of a product of two activations.
        used: whether the weights entered a matrix product.
        sink: probability of a sink that scales the output afterwards, of every row; or None.
    """

    path: tuple[str, ...]
    call: int
    shape: tuple[int, ...]
    entropy: torch.Tensor
    visible: torch.Tensor
    dot: bool
    used: bool = False
    sink: torch.Tensor | None = None


@dataclass
class Listener(TorchDispatchMode):
    model: torch.nn.Module
    found: list = field(default_factory=list)
    path: list = field(default_factory=list)

    def __post_init__(self):
        super().__init__()
        self.fixed = {_storage(p) for p in [*self.model.parameters(), *self.model.buffers()]}
        self.scores, self.weights, self.logs, self.kept = set(), {}, {}, []
        self.calls, self.modules = Counter(), dict(self.model.named_modules())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        outputs = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        if outputs and inputs:
            self._heard(func, args, kwargs or {}, inputs, outputs)
        return out

    def _heard(self, func, args, kwargs, inputs, outputs):
        name, first = func.overloadpacket.__name__, outputs[0]
        if func is FLASH:
            self._flash(*args, **kwargs)
        elif func in SOFTMAX:
            self._softmax(first, args[1], inputs[0])
        elif func is aten._log_softmax.default:
            self._keep(first)
            self.logs[_storage(first)] = (args[1], _storage(inputs[0]) in self.scores)
        elif func in PRODUCTS:
            self._product(inputs, first)
        elif name in CARRIED or name in ("split", "unbind"):
            self._carry(name, inputs, first)

    def _flash(self, q, k, v, dropout=0.0, is_causal=False, *, attn_mask=None, scale=None):
        """The weights of a call that chose the fused kernel itself."""
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        logits = q.double() @ k.double().mT * (scale or q.shape[-1] ** -0.5)
        if is_causal:
            hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
            logits = logits.masked_fill(hidden, -torch.inf)
        weights = (logits if attn_mask is None else logits + attn_mask).softmax(-1)
        self._softmax(weights, -1, logits, dot=True)
        self.found[-1].used = True

    def _softmax(self, weights, dim, logits, *, dot=None):
        self._keep(weights)
        dot = _storage(logits) in self.scores if dot is None else dot
        p = weights.detach().movedim(dim, -1).double()
        entropy = torch.special.entr(p).sum(-1)
        visible = (p > NEGLIGIBLE).sum(-1)
        seeing = logits.detach().movedim(dim, -1).amax(-1) > NOTHING
        visible = visible * seeing.reshape(visible.shape)
        call = self.calls[self.path[-1]] if self.path else 0
        self.found.append(Weights(tuple(self.path), call, tuple(p.shape), entropy, visible, dot))
        self.found[-1].sink = self._sink(logits.detach().movedim(dim, -1).double())
        self.weights.setdefault(_storage(weights), set()).add(len(self.found) - 1)

    def _sink(self, logits):
        """The probability of a sink, where the running module has one logit for each head."""
        module = self.modules.get(self.path[-1]) if self.path else None
        sinks = getattr(module, "sinks", None)
        if not isinstance(sinks, torch.Tensor) or sinks.shape != logits.shape[1:2]:
            return None
        return (sinks.double()[:, None] - logits.logsumexp(-1)).sigmoid()

    def _product(self, inputs, out):
        storages = [_storage(x) for x in inputs]
        for x, one in zip(inputs, storages, strict=True):
            for index in self.weights.get(one, ()):
                self._use(self.found[index], x)
        if not self.fixed.intersection(storages):
            self._keep(out)
            self.scores.add(_storage(out))

    def _use(self, weights, x):
        """Weights that meet values; those of a sink are cut off before, and are no key."""
        weights.used = True
        if x.shape[-1] == weights.shape[-1] - 1 and x[..., 0].numel() == weights.visible.numel():
            weights.visible = (x > NEGLIGIBLE).sum(-1).reshape(weights.visible.shape)
            weights.sink = None

    def _carry(self, name, inputs, out):
        storages = {_storage(x) for x in inputs}
        if storages & self.scores:
            self._keep(out)
            self.scores.add(_storage(out))
        own = set().union(*(self.weights.get(s, set()) for s in storages))
        if (
            own
            and out.numel() >= min(x.numel() for x in inputs if _storage(x) in self.weights) // 2
        ):
            self._keep(out)
            self.weights.setdefault(_storage(out), set()).update(own)
        if name == "exp":
            self._exponential(inputs[0], out)
        elif name in ("div", "div_", "mul") and not own and _storage(inputs[0]) in self.logs:
            self._by_hand(inputs[0], out)

    def _exponential(self, x, out):
        known = self.logs.get(_storage(x))
        self._keep(out)
        if known is not None and known[0] is not None:
            self._softmax(out, known[0], x, dot=known[1])
            return
        self.logs[_storage(out)] = (None, _storage(x) in self.scores)
        self._by_hand(out, out)

    def _by_hand(self, x, out):
        """exp(s) / sum(exp(s)), exp(s - logsumexp(s)): told by rows that add up to one."""
        dim, dot = self.logs[_storage(x)]
        if dim is None and out.dim() > 2 and out.shape[-1] > 1 and dot:
            for axis in (-1, -2):
                total = out.detach().double().sum(axis)
                if torch.allclose(total, torch.ones_like(total), atol=1e-5):
                    self._softmax(out, axis, out.log(), dot=dot)
                    return

    def follow(self, module, name):
        """Hooks that keep the names of the running modules."""

        def enter(*_):
            self.path.append(name)
            self.calls[name] += 1

        def leave(*_):
            del self.path[-1:]

        yield module.register_forward_pre_hook(enter)
        yield module.register_forward_hook(leave, always_call=True)

    def _keep(self, x):
        self.kept.append(x)


def _storage(x):
    return x.untyped_storage()._cdata if x.layout is torch.strided else id(x)


@contextmanager
def listen(model):
    """Yields a list that fills with the Weights of each softmax while the model runs."""
    listener = Listener(model)
    hooks = []
    for name, module in model.named_modules():
        hooks += listener.follow(module, name)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), listener:
            yield listener.found
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for hook in hooks:
            hook.remove()


def attentions(found):
    """The softmaxes whose weights were used: dot attention over keys to choose from, and the rest."""
    used = [w for w in found if w.used]
    must = [w for w in used if w.dot and w.shape[-1] > 1]
    return must, [w for w in used if not w.dot or w.shape[-1] == 1]
