import pytest
import torch

from attentropy.lab.experiments import language
from attentropy.lab.rows import Results
from attentropy.lab.small_model import MASK

TINY = language.Config(width=8, heads=2, layers=1, steps=20, tokens=256, times=(1, 2), tested=512)


def test_causal_asks_for_the_next_byte_and_masked_for_the_hidden_ones():
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randint(256, (4, 65), generator=rng)
    seen, asked = language._posed("causal", tokens, 0.15, rng)
    assert torch.equal(seen[:, 1:], asked[:, :-1])
    seen, asked = language._posed("masked", tokens, 0.15, rng)
    hidden = seen == MASK
    assert 0.05 < hidden.float().mean() < 0.3
    assert torch.equal(asked[hidden], tokens[:, :-1][hidden])
    assert (asked[~hidden] == -100).all()


@pytest.mark.parametrize("positions", TINY.positions)
@pytest.mark.parametrize("task", language.TASKS)
def test_rules_of_the_test_leave_the_trained_length_alone(task, positions):
    rows = Results(language.measure(TINY, f"{task}, {positions}, 1/sqrt d", 0))
    n = language.TASKS[task]
    levels = {rows.mean("perplexity", rule=r, n=n) for r in rows.where(n=n).values("rule")}
    assert max(levels) == pytest.approx(min(levels), rel=1e-4)
    assert rows.mean("entropy", rule="1/sqrt d, log n at test", n=2 * n) < rows.mean(
        "entropy", rule="1/sqrt d", n=2 * n
    )
