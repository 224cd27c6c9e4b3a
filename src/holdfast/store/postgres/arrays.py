"""Values as the parallel arrays that the SQL functions take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from holdfast.database.scripts import DEFAULT_SCHEMA, check_schema_name
from holdfast.types import Finish, NewRun, Suspend, TurnCommit

Column: TypeAlias = "Sequence[object] | None"


class Statement(NamedTuple):
    """SQL text and the arguments of its placeholders, for any driver."""

    text: str
    arguments: tuple[object, ...]


# The parameters of start_runs behind the names: where no run says anything, no array is sent.
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


def start_arguments(runs: Sequence[NewRun]) -> tuple[object, ...]:
    """Return the arguments of `start_runs`."""
    return (
        [run.run_id for run in runs],
        [run.name for run in runs],
        [run.input for run in runs],
        *(_or_none([value(run) for run in runs]) for _, value in _OPTIONAL),
    )


def start_statement(
    runs: Sequence[NewRun],
    *,
    schema: str = DEFAULT_SCHEMA,
    placeholder: Callable[[int], str] = "${}".format,
) -> Statement:
    """Write the call that starts runs inside a transaction of the caller's, on any driver.

    Its rows are (run_id, created, status), in the order given. `placeholder` writes the
    driver's mark for the parameter of a number from 1 on: `lambda _: "%s"` for psycopg.

    >>> start_statement([NewRun(run_id=UUID(int=1), name="a")]).text[:62]
    'select run_id, created, status from "holdfast".start_runs(cast'
    """
    check_schema_name(schema)
    casts = (_cast(placeholder(n), type_) for n, type_ in enumerate(_TYPES, 1))
    call = f'"{schema}".start_runs({", ".join(casts)})'
    text = f"select run_id, created, status from {call}"
    return Statement(text, start_arguments(runs))


def _cast(mark: str, type_: str) -> str:
    if type_ == "json[]":
        # A caller's connection may encode JSON by itself; text it leaves alone.
        mark = f"cast({mark} as text[])"
    return f"cast({mark} as {type_})"


def commit_arguments(
    worker_id: str, token: UUID, turns: Sequence[TurnCommit], tell: str | None = None
) -> tuple[object, ...]:
    """Return the arguments of `commit`: first events, further ones, suspends, ends, reaches."""
    firsts = [turn.events[0] for turn in turns]
    rest = [
        (turn.run_id, idx, event)
        for turn in turns
        if len(turn.events) > 1
        for idx, event in enumerate(turn.events[1:], turn.expected + 1)
    ]
    suspended: list[tuple[UUID, Suspend]] = []
    ended: list[tuple[UUID, Finish]] = []
    for turn in turns:
        match turn.then:
            case Finish() as finish:
                ended.append((turn.run_id, finish))
            case Suspend() as suspend:
                suspended.append((turn.run_id, suspend))
            case None:
                pass
    return (
        worker_id,
        token,
        [turn.run_id for turn in turns],
        [turn.lease_no for turn in turns],
        [turn.expected for turn in turns],
        [event.type for event in firsts],
        [event.key for event in firsts],
        [event.details for event in firsts],
        [event.at for event in firsts],
        [run_id for run_id, _, _ in rest],
        [idx for _, idx, _ in rest],
        [event.type for _, _, event in rest],
        [event.key for _, _, event in rest],
        [event.details for _, _, event in rest],
        [event.at for _, _, event in rest],
        [run_id for run_id, _ in suspended],
        [suspend.visible_at for _, suspend in suspended],
        [_json(suspend.awaiting) if suspend.awaiting else None for _, suspend in suspended],
        [run_id for run_id, _ in ended],
        [finish.status for _, finish in ended],
        [finish.output for _, finish in ended],
        [finish.error for _, finish in ended],
        [turn.run_id for turn in turns if turn.orders],
        list({run_id for turn in turns for run_id in turn.touches}),
        [turn.run_id for turn in turns if turn.has_children and isinstance(turn.then, Finish)],
        [turn.run_id for turn in turns if turn.behind],
        tell,
        True,  # details come back as text
    )


def _or_none(values: list[object]) -> Column:
    return None if all(value is None for value in values) else values


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
