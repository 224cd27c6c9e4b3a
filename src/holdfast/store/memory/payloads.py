"""Refuse the values that a database refuses to store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

import msgspec

from holdfast.codec import MAX_DEPTH, MAX_PAYLOAD, check_depth, depth, has_nul
from holdfast.errors import ConfigurationError, InvalidInput, PayloadError
from holdfast.events import APPROVAL_RESOLVED, SIGNAL_RECEIVED
from holdfast.types import (
    PRIORITIES,
    ActivityEnd,
    Decision,
    Event,
    Finish,
    Fork,
    NewRun,
    NewSignal,
    Reschedule,
    TurnCommit,
)
from holdfast.values.attributes import check_attributes
from holdfast.values.durations import LONGEST_SECONDS
from holdfast.values.names import check_queue_name, check_reference, check_signal_name
from holdfast.values.texts import check_id, check_text

P = ParamSpec("P")
T = TypeVar("T")

_FARTHEST: Final = 10**16  # microseconds


def checked(check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `check` returns for these arguments.

    Raises InvalidInput where `check` raises ConfigurationError: it is made for code of apps, and
    here a caller has given the value.
    """
    try:
        return check(*args, **kwargs)
    except ConfigurationError as error:
        raise InvalidInput(str(error)) from None


def check_limit(limit: int) -> None:
    """Raise InvalidInput for a number of rows that cannot be asked for."""
    if limit < 0:
        raise InvalidInput(f"a limit is 0 or more rows, not {limit}")


def check_seconds(*given: float | None) -> None:
    """Raise InvalidInput for times that are not allowed."""
    for seconds in given:
        if seconds is not None and not 0 <= seconds <= LONGEST_SECONDS:
            raise InvalidInput(f"{seconds} is outside 0 to 10,000,000,000 seconds")


def check_run(run: NewRun) -> None:
    """Raise InvalidInput if a run to start has a value that is not allowed."""
    checked(check_reference, "a workflow", run.name)
    if run.queue is not None:
        checked(check_queue_name, run.queue)
    check_version(run.version)
    if run.priority is not None and run.priority not in PRIORITIES:
        raise InvalidInput(f"priority {run.priority} is outside 0 to 4")
    for what, text in (("key", run.key), ("waiter", run.waiter)):
        if text is not None:
            check_id(what, text)
    if run.start_at is not None and abs(run.start_at) > _FARTHEST:
        raise InvalidInput(f"a start at {run.start_at} µs is centuries away")
    check_seconds(run.delay_seconds, run.timeout_seconds, run.retention_seconds)
    for text in (*run.tags, *(run.headers or {}).keys(), *(run.headers or {}).values()):
        check_text("text", text)
    check_json("input", run.input)
    checked(check_attributes, run.attributes)


def check_version(version: int) -> None:
    """Raise InvalidInput for a version that no workflow can have."""
    if version < 1:
        raise InvalidInput(f"a workflow's version is 1 or more, not {version}")


def check_signal(signal: NewSignal) -> None:
    """Raise InvalidInput if a signal has a value that is not allowed."""
    checked(check_signal_name, signal.name)
    for what, text in (("signal id", signal.signal_id), ("topic", signal.reply_to)):
        if text is not None:
            check_id(what, text)
    check_json("payload", signal.payload)


def check_reason(reason: str | None, by: str | None = None) -> None:
    """Raise InvalidInput for texts of a change that are too long, or PostgreSQL cannot hold."""
    for what, text in (("reason", reason), ("name of who does it", by)):
        if text is not None:
            check_text(what, text)


def check_reschedule(change: Reschedule) -> None:
    """Raise InvalidInput for a change with a value that is not allowed, none, or two for one."""
    if change.queue is not None:
        checked(check_queue_name, change.queue)
    for at in (change.start_at, change.deadline_at):
        if at is not None and abs(at) > _FARTHEST:
            raise InvalidInput(f"a moment at {at} µs is centuries away")
    check_seconds(change.delay_seconds, change.timeout_seconds)
    starts = sum(each is not None for each in (change.start_at, change.delay_seconds))
    ends = sum(each is not None for each in (change.deadline_at, change.timeout_seconds))
    ends += change.no_deadline
    if change.queue is None and starts + ends == 0:
        raise InvalidInput("a change needs a queue, a start, a delay, a deadline or a timeout")
    if starts > 1 or ends > 1:
        raise InvalidInput(
            "a change has either a start or a delay, and one of a deadline, a timeout and none"
        )


def check_pause(scope: str, name: str, reason: str | None) -> None:
    """Raise InvalidInput if a pause has a value that is not allowed."""
    if scope not in ("queue", "workflow"):
        raise InvalidInput(f"a scope is queue or workflow, not {scope!r}")
    if scope == "queue":
        checked(check_queue_name, name)
    else:
        checked(check_reference, "a workflow", name)
    check_reason(reason)


def check_end(end: ActivityEnd) -> None:
    """Raise InvalidInput if an activity's end has a value that no run could read."""
    for text in (end.result, end.error, end.details):
        if text is not None:
            check_json("end", text)


def check_decision(decision: Decision) -> None:
    """Raise InvalidInput if a decision has a value that is not allowed."""
    check_id("decision id", decision.decision_id)
    for what, text in (("name", decision.by), ("feedback", decision.feedback)):
        if text is not None:
            check_text(what, text)
    if decision.values is not None:
        check_json("values", decision.values)
        if not isinstance(msgspec.json.decode(decision.values), dict | None):
            raise InvalidInput("the values are a JSON object")


def check_fork(fork: Fork) -> None:
    """Raise InvalidInput if a fork has a value that is not allowed."""
    if fork.input is not None:
        check_json("input", fork.input)
    if fork.version is not None:
        check_version(fork.version)
    for key, text in fork.results.items():
        check_text("key", key)
        check_json("result", text)


def check_turn(turn: TurnCommit) -> None:
    """Raise PayloadError if a turn's part has a value that cannot be stored."""
    for event in turn.events:
        _check_event(event)
    if isinstance(turn.then, Finish):
        _check_finish(turn.then)


def check_json(what: str, text: str, levels: int = MAX_DEPTH) -> None:
    """Raise PayloadError for text that is not JSON, InvalidInput for JSON that cannot be read."""
    _decode(text)
    data = text.encode()
    if depth(data) > levels:
        raise InvalidInput(f"the {what} is nested more than {MAX_DEPTH} levels deep")
    if has_nul(data):
        raise InvalidInput(f"the {what} has a NUL character, which PostgreSQL cannot hold")
    if len(data) > MAX_PAYLOAD:
        raise InvalidInput(f"the {what} takes more than 16 MiB")


def is_unreadable(event: Event) -> bool:
    """Return True if no worker could read an event."""
    if event.details is None:
        return event.type in (SIGNAL_RECEIVED, APPROVAL_RESOLVED)
    try:
        _decode(event.details)
        check_depth(event.details)
    except PayloadError:
        return True
    return False


def _check_event(event: Event) -> None:
    check_text("event type", event.type)
    if event.key is not None:
        check_text("key", event.key)
    if event.details is not None:
        _decode(event.details)


def _check_finish(finish: Finish) -> None:
    if finish.output is not None and finish.status not in ("completed", "continued"):
        raise PayloadError(f"a run that ends {finish.status} has no output")
    if finish.error is not None and finish.status != "failed":
        raise PayloadError(f"a run that ends {finish.status} has no error")
    for text in (finish.output, finish.error):
        if text is not None:
            _decode(text)


def _decode(text: str) -> None:
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise PayloadError(f"not JSON: {error}") from error
