import msgspec

from attentropy.training.alarms import Alert
from attentropy.training.episodes import QUIET, episodes, episodes_of
from tests.report.synthetic_run import make_run


def alert(step, name="collapse", heads=((0, 0),), severity="warning"):
    return Alert(step, name, severity, heads, f"told at {step}")


def test_one_event_is_one_episode_and_others_are_their_own():
    told = [
        alert(10), alert(12, "spike", ()), alert(20, heads=((0, 0), (1, 2)), severity="critical"),
        alert(400, heads=((3, 3),)),
    ]  # fmt: skip
    first, spike, later = episodes(told, apart=100)
    assert (first.first, first.last, first.alerts) == (10, 20, 2)
    assert first.heads == ((0, 0), (1, 2))
    assert first.severity == "critical"
    assert first.text == "told at 10; 1 more alert, 2 heads in all"
    assert first.steps == "steps 10 to 20"
    assert (spike.name, spike.text, spike.steps) == ("spike", "told at 12", "step 12")
    assert (later.first, later.text) == (400, "told at 400")


def test_a_run_tells_how_far_apart_episodes_are():
    run = make_run(every=50)
    near, far = 50 * QUIET, 50 * QUIET + 1
    for gap, expected in ((near, 1), (far, 2)):
        told = msgspec.structs.replace(run, alerts=[alert(0), alert(gap)])
        assert len(episodes_of(told)) == expected
    empty = msgspec.structs.replace(run, steps=[], alerts=[])
    assert episodes_of(empty) == []
