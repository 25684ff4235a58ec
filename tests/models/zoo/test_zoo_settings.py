"""One model in the settings that people use: padding, caches, compiled, checkpointed, distributed."""

import pytest
import torch

import attentropy as at
from tests.models.zoo import trial
from tests.models.zoo.census import sharpen
from tests.models.zoo.oracle import attentions, listen

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and torch.compile
LENGTH = 10


@pytest.fixture
def model():
    from tests.models.zoo.libraries import llama

    torch.manual_seed(7)
    model = llama().double()
    sharpen(model)
    return model


@pytest.fixture
def ids():
    torch.manual_seed(9)
    return torch.randint(3, 60, (2, LENGTH))


def heard(model, run):
    with torch.no_grad(), listen(model) as found:
        run()
    return attentions(found)[0]


def agree(rows, must):
    assert trial.matched(trial.Verdict("exact"), rows, must, []) == {}


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(side, model, ids):
    mask = torch.ones_like(ids)
    mask[0, : 3 if side == "left" else LENGTH] = 0 if side == "left" else 1
    if side == "right":
        mask[0, -3:] = 0
    run = lambda: model(ids, attention_mask=mask).logits[mask.bool()]  # noqa: E731
    found = trial.verdict(model, run, tokens=mask.bool())
    assert (found.verdict, found.why) == ("exact", "")


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation(cache, model, ids):
    options = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": cache}
    options |= {"disable_compile": True, "eos_token_id": None, "pad_token_id": 0}
    run = lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **options)  # noqa: E731
    plain, must = run(), heard(model, run)
    with at.watch(model, sample=None) as w:
        watched = run()
    assert torch.equal(plain, watched)
    for layer in range(2):
        name = f"model.layers.{layer}.self_attn"
        ran = [op for op in must if op.path[-1] == name]
        for phase, step in (("forward", False), ("step", True)):
            rows = [r for r in w.heads() if (r.layer, r.phase) == (name, phase)]
            ops = [op for op in ran if (op.shape[-2] == 1) == step]
            assert trial.distance(rows, ops) < trial.CLOSE


def test_checkpointing(model, ids):
    def gradients():
        model.zero_grad()
        model(ids, use_cache=False).logits.square().mean().backward()
        return [p.grad.clone() for p in model.parameters()]

    plain = gradients()
    model.gradient_checkpointing_enable()
    model.train()
    must = heard(model, lambda: model(ids, use_cache=False))
    with at.watch(model, sample=None) as w:
        watched = gradients()
    assert trial.change(plain, watched) < 1e-9
    agree(w.heads(), must)


def test_distributed_data_parallel(model, ids, tmp_path):
    import torch.distributed as dist

    must = heard(model, lambda: model(ids))
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        plain = wrapped(ids).logits
        with at.watch(wrapped, sample=None) as w:
            watched = wrapped(ids).logits
    finally:
        dist.destroy_process_group()
    assert trial.change([plain], [watched]) < 1e-9
    agree(w.heads(), must)


@pytest.mark.slow
def test_compiled(model, ids):
    must = heard(model, lambda: model(ids, use_cache=False))
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        plain = model(ids, use_cache=False).logits
        with at.watch(compiled, sample=None) as w:
            watched = compiled(ids, use_cache=False).logits
    assert trial.change([plain], [watched]) < 1e-9
    for op in must:
        rows = [row for row in w.heads() if row.layer.endswith(op.path[-1])]
        assert trial.distance(rows, [op]) < trial.CLOSE
