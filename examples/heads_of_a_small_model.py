"""Per-head statistics of a small transformer, out of the same pass that computes it."""

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import attentropy as at

LAYERS, HEADS, WIDTH, LENGTH = 4, 4, 64, 128


class Layer(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.qkv.weight, std=gain * WIDTH**-0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, at.HeadStats]:
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in parts)
        out, stats = at.attend(q, k, v, mask=at.causal)
        return x + self.out(out.transpose(1, 2).flatten(2)), stats.per_head()


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, LENGTH, WIDTH)
    columns = ("entropy", "normalized_entropy", "perplexity", "top_probability", "max_logit")
    table = Table("layer", "head", *columns, title="Attention of a random model, sharper by layer")
    for index in range(LAYERS):
        x, heads = Layer(gain=0.5 + index)(x)
        for head in range(HEADS):
            cells = (f"{heads[name][head].item():.3f}" for name in columns)
            table.add_row(str(index), str(head), *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
