import pytest

from attentropy.core.notebook.words import plural


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 heads"), (1, "1 head"), (2, "2 heads"), (1234, "1,234 heads")]
)
def test_one_is_singular(count, said):
    assert plural(count, "head") == said
