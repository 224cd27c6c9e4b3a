"""Files of runs that `holdfast runs export` or `archive export` have written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.definitions.app import App
from holdfast.errors import ConfigurationError
from holdfast.payloads.details import open_event
from holdfast.retention.reading import read_archived
from holdfast.types import Event, RunRecord


def read_exported(
    lines: Sequence[str], place: str, app: App
) -> tuple[RunRecord, list[Event], int | None]:
    """Return an exported run, its log, and the clock of a fork; payloads are opened by the app.

    Raises ConfigurationError for lines that are not a run's.
    """
    try:
        archived = read_archived(lines, place)
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigurationError(
            f"it is cut off, or is not a log that `holdfast runs export` has written: {error}"
        ) from None
    return archived.record, opened(archived.events, app), archived.clock_at


def opened(log: list[Event], app: App) -> list[Event]:
    """Return a log, as a file or the archive has it, with payloads that the app has opened."""
    payloads = app.payloads
    return log if payloads is None else [open_event(payloads, event) for event in log]


def read_file(path: Path, app: App) -> tuple[RunRecord, list[Event], int | None]:
    """Return the one run of a file; see `read_exported`.

    Raises ConfigurationError for a file that has none, or several.
    """
    runs = list(runs_of(path))
    if len(runs) != 1:
        raise ConfigurationError(f"{path} has {len(runs)} runs: give a file that has one")
    [(place, lines)] = runs
    return read_exported(lines, place, app)


def runs_of(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the lines of each run in a file, and where they begin. Raises ConfigurationError."""
    place, lines = "", list[str]()
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if lines and not _continues(line):
                    yield place, lines
                    lines = []
                if line.strip():
                    place = place if lines else f"{path}:{number}"
                    lines.append(line)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    if lines:
        yield place, lines


def _continues(line: str) -> bool:
    """Return True for a line of a run that an earlier line began: it has only the run's id."""
    return line.startswith('{"run":"')
