"""Start runs of workflows, and the values of starts as the SQL functions take them: arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from holdfast.database.scripts import DEFAULT_SCHEMA, check_schema_name
from holdfast.store.port import WORK_TOPIC
from holdfast.store.postgres.database import Database, Part, or_none
from holdfast.store.postgres.packing import Packing
from holdfast.store.postgres.rows import json_text, reader
from holdfast.types import AttributeValue, NewRun, Notice, StartedRun


class Statement(NamedTuple):
    """SQL text and the arguments of its placeholders, for any driver."""

    text: str
    arguments: tuple[object, ...]


# The types of the arrays of `start_runs`, in the order of `one_run`, and which of these arrays
# `start_flows` takes. If no run sets a value, no array is sent for it; the first three are always
# set.
_TYPES: Final[Sequence[str]] = (
    *("uuid[]", "text[]", "json[]"),
    *("int[]", "text[]", "text[]", "int[]", "bigint[]"),
    *("double precision[]", "double precision[]", "double precision[]"),
    *("json[]", "json[]", "text[]"),
)
_OF_FLOWS: Final = (0, 1, 2, 4, 5, 6, 9, 10, 11, 12, 13, 7, 8)
_ALWAYS_SET: Final = 3
_LONG: Final[Packing] = ((1, "text"), (2, "json"))  # of these, arrays that may be sent as text

_read_started = reader(StartedRun)


class PostgresStarts(Part):
    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs; see `StartStore.start_runs`. A refused value refuses the whole call."""
        tell = self._database.tell_starts
        if len(runs) == 1:
            found = await self._database.rows(
                "start_one", *one_run(runs[0]), tell, runs[0].rules, True
            )
        else:
            arguments = (*workflow_runs(runs), tell, rules_of(runs), True)
            found = await self._database.rows("start_runs", *arguments, packing=_LONG)
        started = [_read_started(row) for row in found]
        untold = [
            run for run, row in zip(runs, found, strict=True) if row["created"] and not row["told"]
        ]
        return started, await work_notices(self._database, untold)


async def work_notices(database: Database, started: Sequence[NewRun]) -> list[Notice]:
    """Return the notices of runs that were started, of workflows; also if code says the queue."""
    if not started:
        return []
    queues = dict.fromkeys(run.queue for run in started)
    if None in queues:
        unknown = [run.run_id for run in started if run.queue is None]
        queues |= dict.fromkeys(row[0] for row in await database.rows("queues_of_runs", unknown))
    return [Notice(WORK_TOPIC, queue) for queue in queues if queue is not None]


def start_statement(
    runs: Sequence[NewRun],
    *,
    schema: str = DEFAULT_SCHEMA,
    placeholder: Callable[[int], str] = "${}".format,
) -> Statement:
    """Return the call that starts runs inside the caller's own transaction, for any driver.

    The runs are all of workflows or all of flows. The rows have the fields of `StartedRun`, in the
    order given. `placeholder` writes the driver's mark for the parameter of a number from 1 on:
    `lambda _: "%s"` for psycopg.

    >>> start_statement([NewRun(run_id=UUID(int=1), name="a")]).text[:63]
    'select run_id, created, status, refused, refused_until from "ho'
    """
    check_schema_name(schema)
    function, types, arguments = "start_runs", _TYPES, workflow_runs
    if runs and runs[0].kind == "flow":
        function, types, arguments = "start_flows", [_TYPES[n] for n in _OF_FLOWS], flow_runs
    casts = (cast_mark(placeholder(n), type_) for n, type_ in enumerate(types, 1))
    if function == "start_flows":
        call = f'"{schema}".{function}({", ".join(casts)})'
        return Statement(f"select run_id, created, status, null, null from {call}", arguments(runs))
    rules = f"p_rules => {cast_mark(placeholder(len(types) + 1), 'json[]')}, p_outcomes => true"
    call = f'"{schema}".{function}({", ".join(casts)}, {rules})'
    text = f"select run_id, created, status, refused, refused_until from {call}"
    return Statement(text, (*arguments(runs), rules_of(runs)))


def workflow_runs(runs: Sequence[NewRun]) -> tuple[object, ...]:
    """Return the arguments of `start_runs`."""
    if not runs:
        return ([], [], [], *[None] * (len(_TYPES) - _ALWAYS_SET))
    columns = [list(column) for column in zip(*map(one_run, runs), strict=True)]
    return (*columns[:_ALWAYS_SET], *map(or_none, columns[_ALWAYS_SET:]))


def rules_of(runs: Sequence[NewRun]) -> list[str | None] | None:
    """Return the rules that starts bring along, None if none does."""
    rules = [run.rules for run in runs]
    return None if rules.count(None) == len(rules) else rules


def flow_runs(runs: Sequence[NewRun]) -> tuple[object, ...]:
    """Return the arguments of `start_flows`, where a version is a part of the name."""
    columns = workflow_runs(runs)
    names = [f"{run.name}@{run.version}" if run.version else run.name for run in runs]
    return tuple(names if n == 1 else columns[n] for n in _OF_FLOWS)


def one_run(run: NewRun) -> tuple[object, ...]:
    """Return the arguments of `start_one`."""
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
        labels(run.tags, run.attributes),
        json_text(run.headers) if run.headers is not None else None,
        run.waiter,
    )


def cast_mark(mark: str, type_: str) -> str:
    """Return a parameter's mark with its type, for any driver."""
    if type_ == "json[]":
        # A caller's connection may encode JSON by itself; text it leaves alone.
        mark = f"cast({mark} as text[])"
    return f"cast({mark} as {type_})"


def labels(tags: Sequence[str], attributes: Mapping[str, AttributeValue]) -> str | None:
    """Return the tags and the attributes of a start as SQL takes them, None for none."""
    if attributes:
        return json_text({"tags": tags, "attributes": attributes})
    return json_text(tags) if tags else None
