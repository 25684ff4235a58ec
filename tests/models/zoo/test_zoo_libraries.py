"""Models of other libraries in the zoo; each is skipped, in words, where its package is missing."""

import pytest

pytest.importorskip("transformers")

from tests.models.zoo import census
from tests.models.zoo.libraries import SUBJECTS, missing

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries
OWN = [name for name in SUBJECTS if name.startswith("torch ")]
# no attention to record
WITHOUT = {"timm resnet18", "timm focalnet_tiny_srf"}


def tried(name):
    record = census.trial(census.Entry(name))
    return record.verdict, record.why


@pytest.mark.parametrize("name", OWN)
def test_modules_of_torch_are_exact(name):
    assert tried(name) == ("exact", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in SUBJECTS if n not in OWN])
def test_models_of_other_libraries(name):
    package = missing(name)
    if package:
        pytest.skip(f"{package} is not installed: pip install --no-deps {name.split()[0]}")
    verdict, why = tried(name)
    assert verdict == ("no attention" if name in WITHOUT else "exact"), why


def test_a_missing_package_is_named():
    assert missing("torch Transformer") is None
    assert missing("no_such_package model") == "no_such_package"
