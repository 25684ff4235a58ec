"""Models that run in threads of their own are watched and steered apart."""

import threading

import torch
from torch import nn

import attentropy as at
from attentropy.nn import MultiheadAttention
from tests.models.test_watch import CAUSAL, Model, sharp

X = torch.randn(2, 11, 32, generator=torch.Generator().manual_seed(1))


def at_once(*jobs):
    """Run jobs in threads; what they raise is raised here."""
    wrong = []

    def run(job):
        try:
            for _ in range(20):
                job()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = MultiheadAttention(32, 4, mask=at.causal)

    def forward(self, x, mask):
        return self.layer(x).out


def check(make):
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(sharp(make()))
    scales, want = (0.1, 0.9), []
    for model, scale in zip(models, scales):
        handle = at.steer(model, scale=scale)
        want.append(model(X, CAUSAL).detach())
        handle.undo()
    handles = [at.steer(m, scale=s) for m, s in zip(models, scales)]

    def job(model, right):
        return lambda: torch.testing.assert_close(model(X, CAUSAL).detach(), right)

    with at.watch(models[0]) as one, at.watch(models[1]) as two:
        at_once(*(job(m, w) for m, w in zip(models, want)))
    for handle in handles:
        handle.undo()
    assert {row.rows for row in (*one.heads(), *two.heads())} == {20 * 20}


def test_models_on_torch():
    check(Model)


def test_models_of_attentropy():
    check(Own)
