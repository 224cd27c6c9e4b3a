"""A store for callers that may not see payloads: a mark stands in the place of each.

What a payload codec would encode is hidden, and besides what is made of payloads: inputs of
schedules, values of keys, reasons why a run is stuck. Names, keys, tags, attributes, headers and
titles of approvals stay.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.errors import ConfigurationError
from holdfast.events import COMPLETED, FAILED, WORKFLOW_STARTED
from holdfast.server.problems import Problem
from holdfast.store.port import Store
from holdfast.types import (
    LOG_STREAM,
    Bucket,
    Chunk,
    ClippedEvent,
    CountBy,
    DeliveryRecord,
    ErrorInfo,
    Event,
    FlowStepState,
    HeldKey,
    KeptMessage,
    LastFailureRecord,
    LimitWait,
    ListedMessage,
    LogLine,
    MessageFailure,
    OpenActivity,
    OpenStepTasks,
    RecordPage,
    RunCounts,
    RunFilter,
    RunRecord,
    RunTarget,
    ScheduleRecord,
    SendTarget,
    StartWait,
    StreamPart,
    StreamRead,
    SubscriptionRecord,
    Value,
    Wait,
)

V = TypeVar("V")
Hide: TypeAlias = Callable[[str], str]

MARK: Final = "(hidden)"
_WHOLE: Final = 2**30  # bytes: details are cut when they are hidden

_encode: Final = msgspec.json.Encoder().encode
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _text(_: str) -> str:
    return MARK


def _json(_: str) -> str:
    return f'"{MARK}"'


def _items(text: str) -> str:
    """Return as many marks as an array has values: readers count them.

    Without its key, an encoded array is one text that says so.
    """
    try:
        return _encode([MARK] * len(msgspec.json.decode(text, type=list[msgspec.Raw]))).decode()
    except msgspec.ValidationError:
        return _json(text)


def _lines(text: str) -> str:
    """Return lines of a run log that still say when and where they were logged."""
    lines = msgspec.json.decode(text, type=list[LogLine | str])
    return _encode([_hide_line(each) for each in lines]).decode()


def _hide_line(line: LogLine | str) -> LogLine | str:
    if isinstance(line, str):  # it says with which key it is encrypted
        return line
    traceback = None if line.traceback is None else MARK
    return replace(line, message=MARK, fields=dict.fromkeys(line.fields, MARK), traceback=traceback)


def _error(text: str) -> str:
    """Return an error that says its class alone: callers tell errors apart by it."""
    try:
        found = msgspec.json.decode(text, type=ErrorInfo)
    except msgspec.MsgspecError:
        return MARK
    return _encode(ErrorInfo(found.kind, MARK, bases=found.bases)).decode()


FIELDS: Final[Mapping[type[Value], Mapping[str, Hide]]] = {
    RunRecord: {"input": _json, "output": _json, "error": _error},
    LastFailureRecord: {"error": _error},
    Wait: {"stuck": _text},
    FlowStepState: {"output": _json, "error": _error},
    OpenStepTasks: {"error": _error, "stuck": _text},
    OpenActivity: {"heartbeat": _json, "stuck": _text},
    Chunk: {"items": _items},
    RunTarget: {"input": _json},
    SendTarget: {"input": _json},
    ScheduleRecord: {"error": _text},
    Bucket: {"error": _text},
    LimitWait: {"slot": _text},
    HeldKey: {"key": _text},
    StartWait: {"key": _text},
    SubscriptionRecord: {"match": _json},
    DeliveryRecord: {"payload": _json, "error": _text},
    ListedMessage: {"payload": _json, "error": _text},
    MessageFailure: {"error": _text},
    KeptMessage: {"payload": _json},
}
"""What is hidden of values that a store answers with. A test looks at all that it may answer."""

DETAILS: Final[Mapping[str, Callable[[msgspec.Raw], object]]] = {
    **dict.fromkeys(
        ("input", "output", "result", "value", "body", "match", "url", "feedback"), lambda _: MARK
    ),
    "items": lambda raw: msgspec.Raw(_items(bytes(raw).decode()).encode()),
    "signals": lambda _: [],
    "args": lambda _: 0,  # a fingerprint of 32 bits: it tells a right guess from others
    "values": lambda _: None,
    "error": lambda raw: msgspec.Raw(_error_value(bytes(raw).decode()).encode()),
}
"""What is hidden of the details of events, by the name of the member."""


def _error_value(text: str) -> str:
    hidden = _error(text)
    return hidden if hidden != MARK else _json(text)


REFUSED: Final = frozenset(
    {
        "ack_and_start",
        "claim_deliveries",
        "claim_tasks",
        "commit",
        "end_step_tasks",
        "export_runs",
        "heartbeat",
        "receive_messages",
        "receive_signals",
        "restore_run",
        "take_forwards",
    }
)
"""Calls whose callers act on the payloads that they are given: a mark would take their place."""


def hide(value: V) -> V:
    """Return a value of a store without payloads."""
    hidden: Any = value
    if isinstance(value, Event):
        hidden = hide_event(value)
    elif isinstance(value, msgspec.Struct):
        hidden = _hide_fields(value)
    elif isinstance(value, dict):
        hidden = {key: hide(each) for key, each in cast("dict[Any, Any]", value).items()}
    elif type(value) in (list, tuple):
        hidden = type(value)(map(hide, cast("list[Any]", value)))  # type: ignore[call-arg]
    return cast("V", hidden)


def _hide_fields(value: msgspec.Struct) -> msgspec.Struct:
    rules = FIELDS.get(cast("type[Value]", type(value)), {})
    changes: dict[str, object] = {}
    for name in value.__struct_fields__:
        found = getattr(value, name)
        if found is None or _names_next_run(value, name):
            continue
        changed = rules[name](found) if name in rules else hide(found)
        if changed is not found:
            changes[name] = changed
    return replace(value, **changes) if changes else value


def _names_next_run(value: msgspec.Struct, name: str) -> bool:
    """Return True for the output of a run that continued: it is the id of the next one."""
    return name == "output" and isinstance(value, RunRecord) and value.status == "continued"


def hide_event(event: Event) -> Event:
    """Return an entry of a log without payloads."""
    if event.details is None:
        return event
    if event.type in (WORKFLOW_STARTED, COMPLETED):
        return replace(event, details=_json(event.details))
    if event.type == FAILED:
        return replace(event, details=_error_value(event.details))
    try:
        members = _members(event.details)
    except msgspec.MsgspecError:
        return replace(event, details=_json(event.details))
    shown = {
        name: DETAILS[name](raw) if name in DETAILS and bytes(raw) != b"null" else raw
        for name, raw in members.items()
    }
    return replace(event, details=_encode(shown).decode())


class HiddenStore:
    """Passes every call on to a store, and answers without payloads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def schema(self) -> str | None:
        return self._store.schema

    @cached_property
    def reads(self) -> Store:
        return without_payloads(self._store.reads)

    async def fresh_reads(self) -> Store:
        return without_payloads(await self._store.fresh_reads())

    async def list_runs(self, where: RunFilter) -> RecordPage:
        """List runs; see `QueryStore.list_runs`. Raises ConfigurationError for `input_contains`."""
        _check(where)
        return hide(await self._store.list_runs(where))

    async def count_runs_by(self, by: CountBy, where: RunFilter) -> RunCounts:
        """Count runs; see `QueryStore.count_runs_by`. Raises as `list_runs`."""
        _check(where)
        return await self._store.count_runs_by(by, where)

    async def get_values(self, run_ids: Sequence[UUID]) -> dict[UUID, Mapping[str, str]]:
        found = await self._store.get_values(run_ids)
        return {run_id: dict.fromkeys(values, f'"{MARK}"') for run_id, values in found.items()}

    async def read_log(
        self, run_id: UUID, since: int, *, limit: int, clip: int
    ) -> list[ClippedEvent]:
        found = await self._store.read_log(run_id, since, limit=limit, clip=_WHOLE)
        return [_cut(each, clip) for each in found]

    async def read_tails(
        self, ranges: Sequence[tuple[UUID, int]], *, limit: int, clip: int, most_bytes: int
    ) -> list[list[ClippedEvent]]:
        tails = await self._store.read_tails(
            ranges, limit=limit, clip=_WHOLE, most_bytes=most_bytes
        )
        return [[_cut(each, clip) for each in tail] for tail in tails]

    async def recent_log(
        self, *, since: int, limit: int, clip: int
    ) -> list[tuple[UUID, ClippedEvent]]:
        found = await self._store.recent_log(since=since, limit=limit, clip=_WHOLE)
        return [(run_id, _cut(each, clip)) for run_id, each in found]

    async def read_streams(
        self, reads: Sequence[StreamRead], *, limit: int, most_bytes: int
    ) -> list[StreamPart]:
        parts = await self._store.read_streams(reads, limit=limit, most_bytes=most_bytes)
        return [
            _hide_log(part) if read.name == LOG_STREAM else hide(part)
            for read, part in zip(reads, parts, strict=True)
        ]

    async def listen(
        self, topic: str, callback: Callable[[str], None]
    ) -> Callable[[], Awaitable[None]]:
        """Listen; see `ListenStore.listen`. Who hears of an end reads the run."""
        return await self._store.listen(topic, lambda told: callback(told.partition(" ")[0]))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Pass on a call. Raises Problem 403 for one that is about whole payloads."""
            if name in REFUSED:
                text = "the caller may not see payloads, and this gives or takes them whole"
                raise Problem(403, "payloads-hidden", text)
            method = getattr(self._store, name)
            if not inspect.iscoroutinefunction(method):
                return method

            async def hidden(*args: object, **options: object) -> object:
                return hide(await method(*args, **options))

            return hidden


def without_payloads(store: Store) -> Store:
    """Return a store that answers without payloads."""
    return cast("Store", HiddenStore(store))


def _check(where: RunFilter) -> None:
    if where.input_contains is not None:
        raise ConfigurationError(
            "runs cannot be listed by what their inputs contain: the caller may not see payloads"
        )


def _hide_log(part: StreamPart) -> StreamPart:
    return replace(part, chunks=[replace(each, items=_lines(each.items)) for each in part.chunks])


def _cut(entry: ClippedEvent, clip: int) -> ClippedEvent:
    """Return an entry without payloads, cut; its size is still what the details had."""
    event = hide_event(entry.event)
    cut = None if event.details is None else event.details[:clip]
    return replace(entry, event=replace(event, details=cut))
