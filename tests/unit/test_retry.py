"""When a failed step is tried again."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import ConfigurationError
from holdfast.retry import Retry


def middle() -> float:
    return 0.5


def test_the_default_is_three_attempts_exponential_from_a_second() -> None:
    """B2."""
    retry = Retry()
    assert [retry.lasts(attempt) for attempt in (1, 2, 3)] == [True, True, False]
    assert [retry.delay_seconds(attempt, middle) for attempt in (1, 2, 3)] == [1, 2, 4]
    assert retry.delay_seconds(50, middle) == 60
    assert retry.delay_seconds(1, lambda: 0.0) == pytest.approx(0.8)
    assert retry.delay_seconds(1, lambda: 1.0) == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("backoff", "pauses"),
    [("fixed", [2, 2, 2, 2]), ("linear", [2, 4, 6, 7]), ("exp", [2, 6, 7, 7])],
)
def test_backoff_grows_as_named_up_to_max(backoff: Any, pauses: list[float]) -> None:
    """B2."""
    retry = Retry(backoff=backoff, base="2s", max="7s", factor=3)
    assert [retry.delay_seconds(attempt, middle) for attempt in (1, 2, 3, 4)] == pauses


def test_an_endless_retry_never_overflows() -> None:
    """B2."""
    retry = Retry(attempts=None)
    assert retry.lasts(10**6)
    assert retry.delay_seconds(10**6, middle) == 60
    assert Retry(attempts=None, factor=2).delay_seconds(10**6, middle) == 60
    assert Retry(attempts=None, base=0).delay_seconds(10**6, middle) == 0


@pytest.mark.parametrize("option", ["should_retry", "delay"])
def test_what_is_asked_with_the_error_must_be_a_function(option: str) -> None:
    options: dict[str, Any] = {option: 3}
    with pytest.raises(ConfigurationError, match=f"{option} must be a function of the error"):
        Retry(**options)


def test_should_retry_decides_by_the_error() -> None:
    """T3."""
    retry = Retry(should_retry=lambda error: not isinstance(error, KeyError))
    assert retry.accepts(ValueError())
    assert not retry.accepts(KeyError())


def test_never_means_one_attempt() -> None:
    assert not Retry.NEVER.lasts(1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(attempts=0),
        lambda: Retry(attempts=2.5),  # type: ignore[arg-type]
        lambda: Retry(attempts=math.inf),  # type: ignore[arg-type]
        lambda: Retry(attempts=math.nan),  # type: ignore[arg-type]
        lambda: Retry(attempts="3"),  # type: ignore[arg-type]
        lambda: Retry(attempts=2**31),
        lambda: Retry(backoff="cubic"),  # type: ignore[arg-type]
        lambda: Retry(base="2m", max="1m"),
        lambda: Retry(base="soon"),
        lambda: Retry(factor=0.5),
        lambda: Retry(factor=math.inf),
        lambda: Retry(jitter=1.5),
        lambda: Retry(jitter=math.nan),
    ],
)
def test_options_that_cannot_work_are_refused(make: Callable[[], Retry]) -> None:
    with pytest.raises(ConfigurationError):
        make()
