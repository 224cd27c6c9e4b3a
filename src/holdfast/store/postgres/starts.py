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
        tell = self._database.tell
        if len(runs) == 1:
            found = await self._database.rows("start_one", *_values(runs[0]), tell)
        else:
            found = await self._database.rows("start_runs", *_arguments(runs), tell)
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


# The types of a run's values in `start_runs`, in the order of `_values`. If no run sets one, no
# array is sent for it; the first three are always set.
_TYPES: Final = (
    *("uuid[]", "text[]", "json[]"),
    *("int[]", "text[]", "text[]", "int[]", "bigint[]"),
    *("double precision[]", "double precision[]", "double precision[]"),
    *("json[]", "json[]", "text[]"),
)
_ALWAYS_SET: Final = 3


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


def _values(run: NewRun) -> tuple[object, ...]:
    """Return a run's values as `start_one` takes them."""
    return (
        run.run_id,
        run.name,
        run.input,
        None if run.version == 1 else run.version,
        run.key,
        run.queue,
        run.priority,
        run.start_at,
        run.delay_seconds,
        run.timeout_seconds,
        run.retention_seconds,
        _json(run.tags) if run.tags else None,
        _json(run.headers) if run.headers is not None else None,
        run.waiter,
    )


def _arguments(runs: Sequence[NewRun]) -> tuple[object, ...]:
    """Return the arguments of `start_runs`."""
    if not runs:
        return ([], [], [], *[None] * (len(_TYPES) - _ALWAYS_SET))
    columns = [list(column) for column in zip(*map(_values, runs), strict=True)]
    return (*columns[:_ALWAYS_SET], *map(_or_none, columns[_ALWAYS_SET:]))


def _or_none(values: list[object]) -> list[object] | None:
    return None if values.count(None) == len(values) else values


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
