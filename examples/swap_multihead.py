"""Swap the attention of a torch encoder for attentropy's: same outputs, and statistics.

torch's TransformerEncoder keeps working, masks included; each layer now also tells how sharp its
heads are, and its scale can be changed.
"""

import torch
from torch import nn

import attentropy as at


def encoder() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def swap(model: nn.Module, **parts: object) -> dict[str, list[at.Stats]]:
    """Replace every torch.nn.MultiheadAttention; returns where statistics are collected."""
    seen: dict[str, list[at.Stats]] = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.MultiheadAttention):
            ours = at.nn.MultiheadAttention.from_torch(module, **parts)
            seen[name] = []
            ours.register_forward_hook(lambda m, i, out, n=name: seen[n].append(out.stats))
            model.set_submodule(name, ours)
    return seen


def main() -> None:
    torch.manual_seed(0)
    model, x = encoder(), torch.randn(2, 50, 64)
    padding = torch.arange(50) >= torch.tensor([[50], [30]])  # torch's meaning: True is hidden
    with torch.no_grad():
        before = model(x, src_key_padding_mask=padding)
        seen = swap(model)
        after = model(x, src_key_padding_mask=padding)
    shown = ~padding
    print(f"largest difference: {(after - before)[shown].abs().max():.1e}")
    for name, collected in seen.items():
        heads = collected[0].per_head()
        print(f"{name}: perplexity of heads {[round(p, 1) for p in heads.perplexity.tolist()]}")
    with torch.no_grad():
        sharp = encoder()
        sharp.load_state_dict(model.state_dict())
        seen = swap(sharp, scale=at.LogLength(kappa=8.0))
        sharp(x, src_key_padding_mask=padding)
    for name, collected in seen.items():
        heads = collected[0].per_head()
        print(f"{name} at 8 log n / d: {[round(p, 1) for p in heads.perplexity.tolist()]}")


if __name__ == "__main__":
    main()
