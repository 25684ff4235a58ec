"""Models in the settings that people use: padding, caches, compiled, checkpointed, distributed.

A few run on every change, the others in the slow tier. Every number is compared with the oracle.
"""

import copy

import pytest
import torch

import attentropy as at
from tests.models.zoo import trial
from tests.models.zoo.chosen import INTERFACE, TAPPED, build
from tests.models.zoo.oracle import attentions, listen

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and torch.compile
CASES = INTERFACE | TAPPED
LENGTH, DECODER = 10, 7
DAILY = {"llama", "bert", "t5", "bloom"}
TEXTS = [name for name, case in CASES.items() if case.kind in ("causal", "encoder", "pair")]
CAUSAL = [name for name, case in CASES.items() if case.kind == "causal"]


def some(names, daily=DAILY):
    """Parameters, of which those not in `daily` are slow."""
    marks = ([] if name in daily else [pytest.mark.slow] for name in names)
    return [pytest.param(name, marks=mark, id=name) for name, mark in zip(names, marks)]


EAGER = {"gpt_oss", "gemma2", *TAPPED}  # transformers has no other for them
SINGLE = {"bloom", "gemma2"}  # in double their own output is NaN where padding comes first


def made(name):
    """A small model of doubles, in the way that transformers runs it by default."""
    model = copy.deepcopy(build(name, "eager" if name in EAGER else "sdpa")).eval()
    model.config._experts_implementation = "eager"  # grouped products have no double
    return model if name in SINGLE else model.double()


def text(name):
    torch.manual_seed(9)
    batch = {"input_ids": torch.randint(3, 60, (2, LENGTH))}
    if CASES[name].kind == "pair":
        batch["decoder_input_ids"] = torch.randint(3, 60, (2, DECODER))
    return batch


def first(out):
    return out.logits if "logits" in out else out.last_hidden_state


def heard(model, run):
    with torch.no_grad(), listen(model) as found:
        run()
    return attentions(found)[0]


def agree(rows, must):
    assert trial.matched(trial.Verdict("exact"), rows, must, []) == {}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", some(TEXTS))
def test_padding(name, side):
    model, batch = made(name), text(name)
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, slice(0, 3) if side == "left" else slice(-3, None)] = 0
    kept = slice(None) if "decoder_input_ids" in batch else mask.bool()
    run = lambda: first(model(**batch, attention_mask=mask))[kept]  # noqa: E731
    found = trial.verdict(model, run, dtype=model.dtype, tokens=mask.bool())
    assert (found.verdict, found.why) == ("exact", "")


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", some([*CAUSAL, "t5", "bart"]))
def test_generation(name, cache):
    model, ids = made(name), text(name)["input_ids"]
    if cache == "static" and not model._can_compile_fullgraph:
        pytest.skip("transformers gives this model no static cache")
    options = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": cache}
    options |= {"disable_compile": True, "eos_token_id": None, "pad_token_id": 0}
    run = lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **options)  # noqa: E731
    plain, must = run(), heard(model, run)
    with at.watch(model, sample=None) as w:
        watched = run()
    assert torch.equal(plain, watched)
    assert must
    for module in {op.path[-1] for op in must}:
        _same_phases([r for r in w.heads() if r.layer == module], must, module)


def _same_phases(rows, must, module):
    """Rows of the prompt and of single tokens are those of the operators; cross-attention has one."""
    ran = [op for op in must if op.path[-1] == module]
    if {row.kind for row in rows} == {"cross"}:
        assert trial.distance(rows, ran) < trial.CLOSE
        return
    for phase, step in (("forward", False), ("step", True)):
        ops = [op for op in ran if (op.shape[-2] == 1) == step]
        here = [row for row in rows if row.phase == phase and row.rows]
        assert bool(here) == bool(ops)
        assert not ops or trial.distance(here, ops) < trial.CLOSE


@pytest.mark.parametrize("name", some(TEXTS, {"llama", "bloom"}))
def test_checkpointing(name):
    model, batch = made(name), text(name)
    if not model.supports_gradient_checkpointing:
        pytest.skip("transformers does not checkpoint this model")

    def run():
        return first(model(**batch, use_cache=False) if name in CAUSAL else model(**batch))

    def gradients():
        model.zero_grad()
        run().square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    _without_dropout(model)
    plain = gradients()
    model.gradient_checkpointing_enable()
    model.train()
    must = heard(model, run)
    with at.watch(model, sample=None) as w:
        watched = gradients()
    assert trial.change(plain, watched) < trial.SAME[model.dtype]
    agree(w.heads(), must)


def _without_dropout(model):
    """Training draws nothing."""
    for module in model.modules():
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


@pytest.mark.parametrize("name", some(TEXTS, {"llama"}))
def test_distributed_data_parallel(name, tmp_path):
    import torch.distributed as dist

    model, batch = made(name), text(name)
    must = heard(model, lambda: model(**batch))
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        plain = first(wrapped(**batch))
        with at.watch(wrapped, sample=None) as w:
            watched = first(wrapped(**batch))
    finally:
        dist.destroy_process_group()
    assert trial.change([plain], [watched]) < trial.SAME[model.dtype]
    agree(w.heads(), must)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TEXTS, "vit", "whisper"])
def test_compiled(name):
    """Under a compiler a softmax by hand may be out of sight: then the watch says where it is."""
    from tests.models.zoo.chosen import inputs

    model = made(name)
    batch = text(name) if name in TEXTS else _doubles(inputs(name))
    batch |= {"use_cache": False} if name in CAUSAL else {}
    must = heard(model, lambda: model(**batch))
    with torch.no_grad():
        plain = first(model(**batch))
        torch.compiler.reset()
        compiled = torch.compile(model, backend="eager")
        watch = at.watch(compiled, sample=None)
        watch.start()
        watched = first(compiled(**batch))
        watch.stop()
    assert trial.change([plain], [watched]) < trial.SAME[model.dtype]
    rows = watch.heads() if watch.places() else []
    said = {row.module: row for row in watch.coverage()}
    for module in {op.path[-1] for op in must}:
        here = [row for row in rows if row.layer.endswith(module)]
        if here:  # a graph does not count the calls of a layer that is used twice, as ALBERT's is
            ops = [op for op in must if op.path[-1] == module]
            assert trial.distance(here, ops) < trial.CLOSE
        else:
            assert "compiled model hides" in said[module].why


def _doubles(batch):
    return {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
