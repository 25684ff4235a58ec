import pytest
import torch

import attentropy as at
from attentropy.models.plan import Plan
from attentropy.scans.errors import ScanError
from attentropy.scans.judging.calibration import calibrated, check, check_reach
from attentropy.scans.measuring.lengths import Windows
from attentropy.scans.schema import Skipped
from tests.scans.tiny import by_hand, make

IDS = torch.randint(256, (600,), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def scan():
    return at.scan(make().eval(), IDS, lengths=[16, 32, 64])


def test_what_cannot_be_calibrated_is_refused_by_the_name_of_the_argument(scan):
    about = scan.model
    with pytest.raises(ScanError, match=r"^calibrate needs a length beyond 32, got \[16, 32\]$"):
        check(make(), about, IDS, [16, 32])
    about.trained_length = None
    with pytest.raises(ScanError, match=r"^calibrate needs a length beyond 16, got \[16\]$"):
        check(make(), about, IDS, [16])
    dropped = [Skipped(length=4096, reason="the text has only 600 tokens")]
    named = r"got \[16, 32\] \(4,096 is left out: the text has only 600 tokens\)$"
    with pytest.raises(ScanError, match=named):
        check_reach([16, 32], 32, dropped)
    check(by_hand(), about, IDS, [16, 64])
    about.trained_length = 32
    check(make(), about, IDS, [16, 64])


def test_the_plan_holds_the_entropy_of_the_trained_length(scan):
    model = make().eval()
    plan = calibrated(model, Windows.of(IDS, scan.lengths, batch=4), scan)
    assert isinstance(plan, Plan)
    assert (plan.reference, plan.lengths) == (32, (32, 64))
    home, far = plan.effects
    assert abs(far.entropy_after - home.entropy_before) < abs(
        far.entropy_before - home.entropy_before
    )
    assert far.perplexity_before > 1
