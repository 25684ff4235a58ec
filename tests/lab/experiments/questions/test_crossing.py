import torch

from attentropy.lab.experiments.questions import crossing
from attentropy.lab.harness.results import RunResults

SMALL = crossing.CrossingConfig(steps=1, every=1, batch=4, length=5, width=16, layers=1)


def test_the_words_to_say_are_the_source_reversed_and_renamed():
    task = crossing.Pairs(SMALL, image=False, seed=0)
    source, before, said = task.draw()
    assert torch.equal(said, task.renamed[source.flip(1)])
    assert (before[:, 0] == SMALL.vocabulary).all()
    assert torch.equal(before[:, 1:], said[:, :-1])


def test_the_decoder_does_not_see_what_follows():
    torch.manual_seed(0)
    model = crossing.Crossed(SMALL, image=True)
    source, before, _ = crossing.Pairs(SMALL, image=True, seed=0).draw()
    later = before.clone()
    later[:, -1] = 0
    torch.testing.assert_close(model(source, before)[0][:, :-1], model(source, later)[0][:, :-1])


def test_rows_and_conclusion():
    rows = [
        {**row, "condition": name, "seed": seed}
        for name in crossing.conditions(SMALL)
        for seed in range(2)
        for row in crossing.measure(SMALL, name, seed)
    ]
    assert all(0 <= row["share"] <= 1 for row in rows)
    said = crossing.conclude(RunResults(rows))
    assert said[0].startswith("words to words: after training H / log n is ")
