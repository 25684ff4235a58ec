from attentropy.core.errors import AttentropyError
from attentropy.scans.errors import ScanError


def option(argument):
    return f"--{argument}"


def test_arguments_are_called_as_the_caller_calls_them():
    error = ScanError("{lengths} must increase, got {found}; see {tokens}", found=[64, 32])
    assert str(error) == "lengths must increase, got [64, 32]; see tokens"
    assert error.said(option) == "--lengths must increase, got [64, 32]; see --tokens"
    assert isinstance(error, AttentropyError)
    assert isinstance(error, ValueError)


def test_braces_in_values_are_left_alone():
    error = ScanError("{model} {name} failed", name="{0} {model} {")
    assert str(error) == "model {0} {model} { failed"
    assert error.said(option) == "--model {0} {model} { failed"
