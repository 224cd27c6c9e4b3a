"""Options of definitions, refused by the names of the definition and of the option."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from holdfast.durations import Duration, seconds
from holdfast.errors import ConfigurationError


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
            raise ConfigurationError("with 0 s nothing could run: leave it out for no limit")
    return length
