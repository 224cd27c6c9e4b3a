"""The alphabets of names."""

import pytest

from holdfast.errors import ConfigurationError, InvalidName
from holdfast.values import names

CHECKS = [
    names.check_app_name,
    names.check_workflow_name,
    names.check_step_name,
    names.check_queue_name,
    names.check_signal_name,
    names.check_value_name,
]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", ["a", "A-Z.0_9", "x" * 128, "-", "...", ".a", "a."])
def test_a_name_inside_its_alphabet_is_taken(check, name: str) -> None:  # type: ignore[no-untyped-def]
    """B1."""
    assert check(name) == name


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 129, "a b", "a@1", "a#2", "a/b", "é", "a\n", "a\0", 3, b"a"]
)
def test_a_name_outside_its_alphabet_is_refused(check, name: str) -> None:  # type: ignore[no-untyped-def]
    """B1."""
    with pytest.raises(InvalidName, match="is not a name for a"):
        check(name)
    assert issubclass(InvalidName, ConfigurationError)
