"""Options of definitions, with errors that name the definition and the option; and of starts."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Final, TypedDict, get_args

from holdfast.details import OnCancel
from holdfast.errors import ConfigurationError
from holdfast.types import AttributeValue
from holdfast.values.durations import Duration, seconds

_ON_CANCEL: Final[tuple[str, ...]] = get_args(OnCancel)


@contextmanager
def option(of: str, name: str) -> Generator[None]:
    """Name the definition and the option in each ConfigurationError of the block."""
    try:
        yield
    except ConfigurationError as error:
        raise type(error)(f"{of}: {name}: {error}") from None


def limit_seconds(limit: Duration | None, of: str, name: str) -> float | None:
    """Return a time limit in seconds. Raises ConfigurationError for a limit of 0."""
    if limit is None:
        return None
    with option(of, name):
        length = seconds(limit)
        if length == 0:
            raise ConfigurationError("a limit of 0 s lets nothing run: leave it out for no limit")
    return length


def check_on_cancel(policy: OnCancel) -> OnCancel:
    """Return what becomes of a call whose caller is cancelled. Raises ConfigurationError."""
    if policy not in _ON_CANCEL:
        raise ConfigurationError(f"one of {', '.join(_ON_CANCEL)}, not {policy!r}")
    return policy


class AnyRunOptions(TypedDict, total=False):
    """Options of a run that a client or another run starts.

    Options that are left out are those of the workflow.

    Durations are seconds, a text such as `"5m"`, or a `timedelta`.
    """

    priority: int | None
    """0 (most urgent) to 4; 2 unless the workflow says otherwise."""
    queue: str | None
    """The queue whose workers may run it."""
    timeout: Duration | None
    """The time after its start at which the run is ended, whatever it does."""
    tags: Iterable[str]
    """Labels to list runs by."""
    attributes: Mapping[str, AttributeValue] | None
    """Names with texts, numbers or booleans to list and count runs by. No codec encodes them."""
    headers: Mapping[str, str] | None
    """Names and values that travel with the run and its children, such as a trace context."""
