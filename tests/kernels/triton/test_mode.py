"""The interpreter is asked for by the environment."""

from attentropy.kernels.triton.mode import interpreting


def test_only_one_means_yes(monkeypatch):
    for value, want in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("TRITON_INTERPRET", value)
        assert interpreting() is want
    monkeypatch.delenv("TRITON_INTERPRET")
    assert interpreting() is False
