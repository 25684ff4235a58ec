"""Which temperature does contrastive learning need? Ask, then check by training.

Cosine similarities lie within +-1, so at temperature tau the softmax over n candidates has a least
entropy, and no candidate gets more than 1 / (1 + (n - 1) e^(-2/tau)). However good the encoder is,
the loss cannot fall below the logarithm of that: at temperature 1 nearly log n.
"""

import math

import torch
import torch.nn.functional as F

import attentropy as at

CANDIDATES = 256


def trained_loss(tau: float) -> float:
    """Train free embeddings of pairs; the contrastive loss that they reach."""
    torch.manual_seed(0)
    images, texts = (torch.randn(CANDIDATES, 64, requires_grad=True) for _ in range(2))
    optimiser = torch.optim.Adam([images, texts], 0.05)
    for _ in range(150):
        logits = F.normalize(images, dim=-1) @ F.normalize(texts, dim=-1).T / tau
        loss = F.cross_entropy(logits, torch.arange(CANDIDATES))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return loss.item()


def main() -> None:
    print(f"{CANDIDATES} candidates: log n = {math.log(CANDIDATES):.2f} nats")
    for wanted in (3.0, 1.0, 0.1):
        tau = at.analysis.tau_for_entropy(CANDIDATES, wanted)
        print(f"an entropy of {wanted} nats needs a temperature of at most {tau:.3f}")
    print("temperature  least entropy  least loss  loss after training")
    for tau in (1.0, 0.5, 0.2, 0.07):
        least = at.analysis.entropy_range(CANDIDATES, tau=tau).least
        floor = math.log1p((CANDIDATES - 1) * math.exp(-2 / tau))
        print(f"{tau:11.2f}  {least:13.4f}  {floor:10.4f}  {trained_loss(tau):19.4f}")


if __name__ == "__main__":
    main()
