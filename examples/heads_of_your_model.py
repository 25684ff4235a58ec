"""Watch a model while it runs, ask what is wrong with its heads, and mend it.

Run with: python examples/heads_of_your_model.py
"""

import torch
from torch import nn

import attentropy as at

torch.manual_seed(0)
model = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2, enable_nested_tensor=False
).eval()
with torch.no_grad():
    model.layers[1].self_attn.in_proj_weight[:128] *= 12  # queries and keys that grew too far
    with at.watch(model) as w:
        model(torch.randn(2, 128, 64))

for row in w.heads():
    print(f"{row.label:24} entropy {row.entropy:5.2f}  largest logit {row.max_logit:7.1f}")

for finding in at.diagnose(w.heads()):
    print(f"{finding.severity}: {finding.name} in {', '.join(finding.labels)}")
    print(f"  {finding.advice}")

handle = at.steer(model, qk_norm=True)
with torch.no_grad(), at.watch(model) as w:
    model(torch.randn(2, 128, 64))
print(f"steered: largest logit {max(row.max_logit for row in w.heads()):.1f}")
handle.undo()
