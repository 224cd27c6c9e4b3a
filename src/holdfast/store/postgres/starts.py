"""Start runs, over the store's connections or inside a transaction of the caller's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from holdfast.database.scripts import DEFAULT_SCHEMA, check_schema_name
from holdfast.store.port import WORK_TOPIC
from holdfast.store.postgres.database import Part
from holdfast.types import NewRun, Notice, StartedRun


class PostgresStarts(Part):
    """Starts runs."""

    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs; see `StartStore.start_runs`. A refused value refuses the whole call."""
        arguments = _arguments(runs)
        found = await self._database.rows("start_runs", *arguments, self._database.tell)
        started = [StartedRun(row["run_id"], row["created"], row["status"]) for row in found]
        queues = {
            run.queue: None
            for run, row in zip(runs, found, strict=True)
            if row["created"] and not row["told"]
        }
        return started, [Notice(WORK_TOPIC, queue) for queue in queues]


class Statement(NamedTuple):
    """SQL text and the arguments of its placeholders, for any driver."""

    text: str
    arguments: tuple[object, ...]


# The parameters of start_runs after the names. If no run sets one, no array is sent for it.
_OPTIONAL: Final[tuple[tuple[str, Callable[[NewRun], object]], ...]] = (
    ("int[]", lambda run: None if run.version == 1 else run.version),
    ("text[]", lambda run: run.key),
    ("text[]", lambda run: run.queue),
    ("int[]", lambda run: run.priority),
    ("bigint[]", lambda run: run.start_at),
    ("double precision[]", lambda run: run.delay_seconds),
    ("double precision[]", lambda run: run.timeout_seconds),
    ("double precision[]", lambda run: run.retention_seconds),
    ("json[]", lambda run: _json(run.tags) if run.tags else None),
    ("json[]", lambda run: _json(run.headers) if run.headers is not None else None),
    ("text[]", lambda run: run.waiter),
)
_TYPES: Final = ("uuid[]", "text[]", "json[]", *(type_ for type_, _ in _OPTIONAL))


def start_statement(
    runs: Sequence[NewRun],
    *,
    schema: str = DEFAULT_SCHEMA,
    placeholder: Callable[[int], str] = "${}".format,
) -> Statement:
    """Return the call that starts runs inside the caller's own transaction, for any driver.

    Its rows are (run_id, created, status), in the order given. `placeholder` writes the
    driver's mark for the parameter of a number from 1 on: `lambda _: "%s"` for psycopg.

    >>> start_statement([NewRun(run_id=UUID(int=1), name="a")]).text[:62]
    'select run_id, created, status from "holdfast".start_runs(cast'
    """
    check_schema_name(schema)
    casts = (_cast(placeholder(n), type_) for n, type_ in enumerate(_TYPES, 1))
    call = f'"{schema}".start_runs({", ".join(casts)})'
    text = f"select run_id, created, status from {call}"
    return Statement(text, _arguments(runs))


def _cast(mark: str, type_: str) -> str:
    if type_ == "json[]":
        # A caller's connection may encode JSON by itself; text it leaves alone.
        mark = f"cast({mark} as text[])"
    return f"cast({mark} as {type_})"


def _arguments(runs: Sequence[NewRun]) -> tuple[object, ...]:
    """Return the arguments of `start_runs`."""
    return (
        [run.run_id for run in runs],
        [run.name for run in runs],
        [run.input for run in runs],
        *(_or_none([value(run) for run in runs]) for _, value in _OPTIONAL),
    )


def _or_none(values: list[object]) -> list[object] | None:
    return None if all(value is None for value in values) else values


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
