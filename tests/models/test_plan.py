import json

import msgspec
import pytest

import attentropy as at
from attentropy.lab.embedded import load_embedded
from attentropy.models.losses.paired import Paired
from attentropy.models.plan import Effect, Judged, Plan, PlanError
from attentropy.models.rope import settings


@pytest.fixture
def plan():
    return at.Plan(
        model="Tiny",
        reference=16,
        hold="entropy",
        method="empirical",
        lengths=(16, 64, 128),
        factors={"layers.0": ((1.0, 1.1, 1.25), (1.0, 1.0, 1.0))},
        entropy={"layers.0": (1.5, None)},
        spread={"layers.0": (0.1 + 0.2, 2.0)},
        unheld=(("layers.0", 1),),
        effects=(
            Effect(length=16, entropy_before=1.5, entropy_after=1.5),
            Effect(
                length=64,
                entropy_before=2.0,
                entropy_after=None,
                perplexity_before=9.0,
                perplexity_after=8.0,
            ),
        ),
    )


def test_a_plan_survives_json(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    assert at.Plan.load(tmp_path / "plan.json") == plan
    assert at.Plan.from_json(plan.to_json()) == plan
    data = json.loads(plan.to_json())
    assert (data["format"], data["version"]) == ("attentropy.plan", 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=2), "version 2 of attentropy.plan; this attentropy reads 1"),
        (lambda d: d.update(format="x"), "the plan is not a file of attentropy.plan"),
        (lambda d: d.update(more=1), "unknown field `more`"),
        (lambda d: d.pop("hold"), "missing required field `hold`"),
        (lambda d: d.update(hold="x"), r"Invalid enum value 'x' - at `\$.hold`"),
        (lambda d: d.update(method="x"), r"Invalid enum value 'x' - at `\$.method`"),
        (lambda d: d.update(lengths=[16, 8, 128]), "lengths must be increasing integers"),
        (lambda d: d.update(lengths=[]), "lengths must be increasing integers"),
        (lambda d: d.update(reference=8), "lengths must be increasing integers from the refer"),
        (lambda d: d["factors"]["layers.0"][0].pop(), "head 0 must be 3 positive numbers"),
        (lambda d: d["factors"]["layers.0"][1].__setitem__(2, 0.0), "head 1 must be 3 positive"),
        (lambda d: d.update(factors=3), r"Expected `object`, got `int` - at `\$.factors`"),
        (lambda d: d["factors"]["layers.0"][0].__setitem__(0, "1"), r"got `str` - at `\$.factors"),
        (lambda d: d.update(effects=[{"x": 1}]), r"at `\$.effects\[0\]`"),
    ],
)
def test_a_broken_plan_is_refused(plan, change, message):
    data = json.loads(plan.to_json())
    change(data)
    with pytest.raises(PlanError, match=message):
        at.Plan.from_json(json.dumps(data))


def test_a_file_that_is_no_plan_is_named(tmp_path):
    with pytest.raises(PlanError, match="the plan is not JSON"):
        at.Plan.from_json("{")
    (tmp_path / "mine.json").write_text("[]")
    with pytest.raises(PlanError, match=r"mine\.json is not a file of attentropy\.plan"):
        at.Plan.load(tmp_path / "mine.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hold": "x"}, r"hold must be one of \('entropy', 'normalized'\), got 'x'"),
        ({"method": "x"}, r"method must be one of \('empirical', 'gaussian'\), got 'x'"),
        ({"lengths": (16, True)}, "lengths must be increasing integers from the reference 16"),
        ({"lengths": ("16",)}, "lengths must be increasing integers"),
    ],
)
def test_a_plan_of_wrong_arguments_is_refused(plan, change, message):
    with pytest.raises(PlanError, match=message):
        at.Plan(**(msgspec.structs.asdict(plan) | change))


def test_table_shows_before_and_after(plan):
    shown = plan.table()
    assert shown.row_count == 2
    assert shown.title == "held at 16: entropy"
    assert shown.caption == "1 head cannot be held"
    assert "8" in str(shown)


def test_rule_is_that_of_a_layer(plan):
    assert plan.rule("nowhere") is None
    assert plan.rule("layers.0").factors == plan.factors["layers.0"]


def test_a_plan_carries_positions(plan, tmp_path):
    rope = settings.yarn(trained=16, to=32)
    with_rope = msgspec.structs.replace(plan, rope=rope, hold=None, method=None)
    with_rope.save(tmp_path / "plan.json")
    assert at.Plan.load(tmp_path / "plan.json") == with_rope
    data = json.loads(with_rope.to_json())
    assert data["rope"]["attention_factor"] == pytest.approx(1.0693147)
    data["rope"]["more"] = 1
    with pytest.raises(PlanError, match=r"unknown field `more` - at `\$.rope`"):
        at.Plan.from_json(json.dumps(data))
    data["rope"] = {"rope_type": "linear", "max_position_embeddings": 32}
    with pytest.raises(PlanError, match="factor must be given for rope_type 'linear'"):
        at.Plan.from_json(json.dumps(data))


def test_a_plan_that_was_measured_to_hurt_warns_when_it_is_applied():
    model = load_embedded()
    hurt = Paired(before=2.0, after=2.2, error=0.05, texts=9)
    judged = Judged(length=256, last=64, held_out=True, change=hurt, truncation=hurt)
    plan = msgspec.structs.replace(neutral(), judged=judged)
    assert plan.helps is False
    assert (
        "it hurts on the last 64 of 256 tokens of other texts: loss 2.000" in plan.table().caption
    )
    with pytest.warns(
        RuntimeWarning, match=r"measured to hurt: at the end of 256 tokens .* 2\.200"
    ):
        at.steer(model, plan).undo()
    assert Plan.from_json(plan.to_json()) == plan


def test_a_plan_that_helps_or_was_not_judged_is_applied_in_silence():
    model = load_embedded()
    good = Paired(before=2.0, after=1.5, error=0.05, texts=9)
    judged = Judged(length=256, last=64, held_out=True, change=good, truncation=good)
    for plan, helps in (
        (neutral(), None),
        (msgspec.structs.replace(neutral(), judged=judged), True),
    ):
        assert plan.helps is helps
        at.steer(model, plan).undo()


def neutral():
    return Plan(
        model="EmbeddedModel", reference=128, hold="entropy", method="empirical", lengths=(128,),
        factors={}, entropy={}, spread={},
    )  # fmt: skip
