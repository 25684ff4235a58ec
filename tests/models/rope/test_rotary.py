import copy
import pickle

import pytest
import torch
from torch import nn

from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.models.rope import rotary, settings
from tests.models.rope.test_settings import EACH
from tests.scans.small_llama import llama


@pytest.fixture
def model():
    return llama().requires_grad_(False)


@pytest.fixture
def ids():
    return torch.arange(96)[None] * 7 % 97


def state(model):
    module = rotary.rotary_modules(model)[0]
    kept = {name: vars(module).get(name) for name in rotary.STATE}
    return {**kept, **module._buffers}, set(vars(module))


@pytest.mark.parametrize("name", EACH)
def test_a_turned_model_is_the_one_that_its_config_makes(model, ids, name):
    before, plain = state(model), model(ids).logits
    undo = rotary.turn(model, EACH[name])
    turned = model(ids).logits
    assert not torch.allclose(turned, plain, atol=1e-3)
    if EACH[name].fits_config:
        fresh = type(model)(rotary.with_rope(model.config, EACH[name])).eval()
        fresh.load_state_dict(model.state_dict())
        torch.testing.assert_close(turned, fresh(ids).logits, rtol=0, atol=1e-5)
    undo()
    after = state(model)
    assert after[1] == before[1]
    assert all(after[0][name] is value for name, value in before[0].items())
    assert torch.equal(model(ids).logits, plain)


def test_clipped_positions_are_positions_that_stop(model, ids):
    places = torch.arange(96).clamp(max=63)[None]
    mask = torch.ones_like(ids)
    wanted = model(ids, position_ids=places, attention_mask=mask).logits
    undo = rotary.turn(model, EACH["clipped"])
    torch.testing.assert_close(model(ids).logits, wanted)
    undo()


def test_two_settings_at_once_are_refused(model):
    undo = rotary.turn(model, EACH["yarn"])
    with pytest.raises(ArgumentError, match="without rope while the model has rope of another"):
        rotary.turn(model, EACH["linear"])
    undo()
    rotary.turn(model, EACH["linear"])()


def test_copies_of_a_turned_model_are_turned(model, ids):
    undo = rotary.turn(model, EACH["clipped"])
    turned = model(ids).logits
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(copied(ids).logits, turned)
    undo()


def test_the_mode_of_the_model_is_not_put_back(model):
    undo = rotary.turn(model, EACH["yarn"])
    model.train()
    undo()
    assert rotary.rotary_modules(model)[0].training


def test_models_without_rotary_positions_are_refused_by_name():
    model = nn.Sequential(nn.Linear(2, 2))
    assert "Sequential has no rotary positions" in rotary.why_fixed(model)
    with pytest.raises(UnsupportedError, match="rope settings need rotary positions of transf"):
        rotary.turn(model, settings.dynamic(trained=64))


def test_what_the_model_has_is_told(model):
    assert rotary.rotary_width(model) == 8
    assert rotary.rope_parameters(model)["rope_theta"] == 10000.0


def test_angles_keep_their_precision(model):
    table = rotary.rotary_modules(model)[0].inv_freq.clone()
    with rotary.exact_angles(model):
        model.to(torch.bfloat16)
    assert torch.equal(rotary.rotary_modules(model)[0].inv_freq, table)
    assert model.lm_head.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["linear", "ntk", "yarn", "llama3", "bands"])
def test_every_table_is_one_of_divisors(model, ids, name):
    undo = rotary.turn(model, EACH[name])
    wanted = model(ids).logits
    undo()
    undo = rotary.turn(model, rotary.as_bands(model, EACH[name]))
    torch.testing.assert_close(model(ids).logits, wanted, rtol=1e-4, atol=1e-4)
    undo()
