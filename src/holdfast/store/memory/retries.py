"""Find the calls that a retry makes again: those that ended the run by failing."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from typing import Final

import msgspec

from holdfast.details import WorkflowFailed
from holdfast.events import (
    ACTIVITY_CANCEL,
    ACTIVITY_RETRY,
    CALL_FAILURES,
    CANCEL_REQUESTED,
    CANCELLED,
    CHILD_CANCEL,
    FAILED,
    FORKED,
    NAMED_BY_CALLERS,
    PAUSED,
    RESCHEDULED,
    RESUMED,
    SIGNAL_RECEIVED,
    STEP_COMPLETED,
    STEP_ENDS,
    STEP_RETRY,
    TIMER_FIRED,
    TIMER_SCHEDULED,
    TIMERS,
    VALUE_RECORDED,
    VALUE_SET,
    WORKER_LOST,
    read_forked,
    read_signal,
    with_role,
)
from holdfast.store.memory import details
from holdfast.store.memory.rows import RunRow
from holdfast.types import UPDATE_REPLY, Event
from holdfast.values.answers import Answered, answered_call, looked_up

# Events after the failure that a retry keeps: results, failures that did not end the run, the
# commands of both, and messages of people and other runs.
_LATER: Final = (
    with_role("command", "command_end")
    | STEP_ENDS
    | {SIGNAL_RECEIVED, VALUE_RECORDED, CANCEL_REQUESTED, FORKED}
)
# Events that may come between a failure and the end of the run if the code made no call between.
_QUIET: Final = (
    CALL_FAILURES
    | with_role("withdrawal", "suspension")
    | {
        FAILED,
        ACTIVITY_RETRY,
        STEP_RETRY,
        TIMER_SCHEDULED,
        VALUE_SET,
        WORKER_LOST,
        PAUSED,
        RESCHEDULED,
        RESUMED,
    }
)
_WITHDRAWN: Final = frozenset({ACTIVITY_CANCEL, CHILD_CANCEL})
_call_failed: Final = re.compile(r"(?:step|activity|child) (\S+) failed: ")
_CALL_ERRORS: Final = re.compile(r"holdfast\.errors\.(Step|Activity|Child)(Failed|TimedOut)")
_GROUPS: Final = ("builtins.ExceptionGroup", "builtins.BaseExceptionGroup")


class Fatal(msgspec.Struct, frozen=True):
    """The calls that are made again; `seen` entries of the log led to the first failure.

    `calls` failed, and `after` are those that the code made because of it, or of a cancel. The new
    run is `uncancelled` if it does not have the cancel.
    """

    calls: frozenset[str] = frozenset()
    seen: int = 0
    after: frozenset[str] = frozenset()
    uncancelled: bool = False


class _Error(msgspec.Struct, frozen=True):
    """The fields of an error that matter here. Stored errors may lack some of them."""

    kind: str = ""
    message: str = ""
    cause: _Error | None = None


def made_again(events: Sequence[Event], origin: RunRow, *, failed_steps: bool) -> Fatal:
    """Return what a retry makes again: the failures that ended a run, or with `failed_steps` all.

    No calls if the run did not end by a failure, and of a cancelled run what its code called
    because of the cancel. Calls that the code had cancelled are kept. A cancel is left out if the
    run ended by it, or if what failed was before it: then so is what the code called because of it.
    Else the code is cancelled at the same place: what had failed before that is not made again.
    """
    last = events[-1]
    has_said = last.type in (FAILED, CANCELLED)
    said = details.read((last.details if has_said else None) or "{}", WorkflowFailed)
    told = next((i for i, event in enumerate(events, 1) if event.type == CANCEL_REQUESTED), 0)
    uncancelled = told > 0 and (last.type == CANCELLED or 0 < (said.seen or 0) <= told)
    if failed_steps:
        calls = _all_failed(events, origin, uncancelled=uncancelled)
        if calls:
            after = answered(events, calls).union(said.handling, said.after if uncancelled else ())
            return Fatal(calls, len(events), after, uncancelled)
        if last.type != CANCELLED:
            return Fatal()
    if said.seen is None and last.type != CANCELLED:
        return _guessed(events, origin.error) if last.type == FAILED else Fatal()
    seen = told if said.seen is None else said.seen
    after = answered(events, said.calls).union(said.after)
    return Fatal(frozenset(said.calls), seen, after, uncancelled)


def answered(events: Sequence[Event], calls: Container[str]) -> frozenset[str]:
    """Return which of the calls that failed are of entities, and the steps that got their answers.

    The log has them as completed, and a retry makes them again.
    """
    keys = (event.key or "" for event in events if event.type == STEP_COMPLETED)
    found = [key for key in keys if key in calls]
    return frozenset((*found, *map(looked_up, found)))


def _answered(event: Event) -> Answered | None:
    """Return which call of an entity an event answers, None for any other event."""
    found = answered_call(event.key) if event.type == SIGNAL_RECEIVED else None
    if found is None or read_signal(event.details or "").signal_name != UPDATE_REPLY:
        return None
    return found


def _made_by(events: Sequence[Event], origin: RunRow) -> dict[str, tuple[str, int | None]]:
    """Return by which run each step was called that has completed, by key: the log may be copied.

    With when that run began. An answer of an entity may also have come to an earlier call, of which
    the log has nothing, or to that of a deleted run with the same id.
    """
    began = origin.started_at if origin.clock_at is None else origin.clock_at
    found, keys = dict[str, tuple[str, int | None]](), list[str]()
    for event in events:
        if event.type == STEP_COMPLETED:
            keys.append(event.key or "")
        elif event.type == FORKED:
            maker = (str(read_forked(event.details or "").run_id), began)
            found.update(dict.fromkeys(keys, maker))
            keys, began = [], event.at
    return found | dict.fromkeys(keys, (str(origin.new.run_id), began))


def _all_failed(events: Sequence[Event], origin: RunRow, *, uncancelled: bool) -> frozenset[str]:
    """Return all calls that failed, unless the code had cancelled them; see `made_again`."""
    makers = _made_by(events, origin)
    calls, withdrawn = set[str](), set[str]()
    is_cancelled = False
    for event in events:
        if event.type == CANCEL_REQUESTED:
            is_cancelled = True
            if not uncancelled:
                calls.clear()
        elif event.type in _WITHDRAWN:
            if not (uncancelled and is_cancelled):
                withdrawn.add(event.key or "")
        elif event.type in CALL_FAILURES and event.key not in withdrawn:
            calls.add(event.key or "")
        answer = _answered(event)
        if answer is not None and answer.failed:
            run_id, began = makers.get(answer.key, (None, None))
            if run_id == answer.run_id and answer.began in (began, None):
                calls.add(answer.key)
    return frozenset(calls)


def without_failures(events: Sequence[Event], fatal: Fatal) -> Iterator[Event]:
    """Leave out the failures that ended the run, and events that only followed from them.

    Of a cancelled run, leave out what followed from the cancel.

    These are the calls that the code made because of them, the cancels of children and activities,
    and the timers around the failed calls, or all that the cancel stopped, which start again.
    """
    calls, seen = fatal.calls, fatal.seen
    if not seen:
        yield from events
        return
    withdrawn = {event.key for event in events[seen:] if event.type in _WITHDRAWN}
    fired = {event.key for event in events[:seen] if event.type == TIMER_FIRED}
    scopes = [_scope(call) for call in calls]
    for idx, event in enumerate(events):
        key = event.key or ""
        answer = _answered(event)
        if (key if answer is None else answer.key) in fatal.after and (
            answer is not None or event.type not in NAMED_BY_CALLERS
        ):
            kept = False
        elif event.type in TIMERS:
            kept = key in fired or not (
                fatal.uncancelled or any(_surrounds(_scope(key), scope) for scope in scopes)
            )
        elif event.type in CALL_FAILURES:
            kept = key not in calls and (idx < seen or key not in withdrawn)
        else:
            kept = idx < seen or event.type in _LATER
        if kept:
            yield event


def _scope(key: str) -> str:
    """Return the path of the task that made a call."""
    return key.rpartition("/")[0]


def _surrounds(outer: str, inner: str) -> bool:
    """Return True if the task `outer` is `inner`, or created it directly or indirectly."""
    return not outer or f"{inner}/".startswith(f"{outer}/")


def _guessed(events: Sequence[Event], error: str | None) -> Fatal:
    """Find the failures in a log of an older release, which did not record them.

    The error names its call. Other failures count if the code did nothing after them.
    """
    failed = {event.key: idx for idx, event in enumerate(events) if event.type in CALL_FAILURES}
    last = max(idx for idx, event in enumerate(events) if event.type not in _QUIET)
    trailing = {key for key, idx in failed.items() if idx > last}
    chain = list(_chain(error))
    names = [_call(one) for one in chain]
    found = set(names[:1]) & failed.keys() or set(names) & trailing
    if any(one.kind in _GROUPS for one in chain):
        found |= trailing
    if not found:
        return Fatal()
    first = min(failed[key] for key in found)
    found |= {key for key in trailing if failed[key] > first}
    return Fatal(frozenset(key for key in found if key is not None), first + 1)


def _chain(error: str | None) -> Iterator[_Error]:
    """Yield an error and its causes, up to the first one that is the failure of a call."""
    try:
        one: _Error | None = msgspec.json.decode(error or "null", type=_Error | None)
    except msgspec.ValidationError:
        return  # not written by a worker
    while one is not None:
        yield one
        one = None if _call(one) else one.cause


def _call(error: _Error) -> str | None:
    """Return the key of the failed call that an error names, None if it names none."""
    if not _CALL_ERRORS.fullmatch(error.kind):
        return None
    found = _call_failed.match(error.message)
    return None if found is None else found[1]
