"""Refuse schedules that a database refuses to store."""

from __future__ import annotations

from typing import Final, get_args
from uuid import UUID

from holdfast.errors import InvalidInput
from holdfast.store.memory.payloads import check_json, check_run, check_seconds, checked
from holdfast.types import (
    MOST_MISSED,
    PRIORITIES,
    NewRun,
    NewSchedule,
    Overlap,
    SendTarget,
    TickPolicy,
    When,
)
from holdfast.values.composing import compose
from holdfast.values.durations import LONGEST_SECONDS
from holdfast.values.moments import to_datetime
from holdfast.values.names import check_queue_name, check_reference
from holdfast.values.patterns import check_topic
from holdfast.values.texts import check_id, check_text

_FARTHEST: Final = 10**16  # microseconds


def check_schedule(new: NewSchedule) -> None:
    """Raise InvalidInput if a schedule has a value that is not allowed."""
    checked(check_reference, "a schedule", new.name)
    _check_when(new.name, new.when)
    if new.note is not None:
        check_text("note", new.note)
    target, policy = new.target, new.policy
    if isinstance(target, SendTarget):
        _check_sender(new, target)
        _check_policy(policy)
        return
    check_run(
        compose(
            NewRun,
            target,
            run_id=UUID(int=0),
            version=1 if target.version is None else target.version,
        )
    )
    _check_policy(policy)


def check_overlap_of(new: NewSchedule, overlap: str | None) -> None:
    """Raise InvalidInput for a policy of overlap where nothing runs that could overlap."""
    if isinstance(new.target, SendTarget) and overlap not in (None, "allow"):
        raise InvalidInput(
            f"schedule {new.name} starts no run that could overlap, so the policy is 'allow', not "
            f"{overlap!r}"
        )


def _check_sender(new: NewSchedule, target: SendTarget) -> None:
    check_json("payload", target.input)
    check_overlap_of(new, new.policy.overlap)
    if "/" not in new.name:
        raise InvalidInput(f"schedule {new.name} says nothing of an app: name it APP/{new.name}")
    if target.kind == "topic":
        checked(check_topic, target.name)
        if (target.group, target.priority, target.headers) != (None, None, None):
            raise InvalidInput(
                f"schedule {new.name} publishes to a topic: priority, headers and group are of "
                "messages"
            )
        if new.policy.jitter_seconds:
            raise InvalidInput(
                f"schedule {new.name} publishes to a topic, which cannot be delayed by a jitter"
            )
        return
    checked(check_queue_name, target.name)
    if target.group is not None:
        check_id("group", target.group)
    if target.priority is not None and target.priority not in PRIORITIES:
        raise InvalidInput(f"a priority is 0 (most urgent) to 4, not {target.priority}")
    for text in (*(target.headers or {}).keys(), *(target.headers or {}).values()):
        check_text("header", text)


def _check_policy(policy: TickPolicy) -> None:
    check_overlap(policy.overlap)
    times = (policy.catch_up_seconds, policy.jitter_seconds, policy.bucket_retention_seconds)
    check_seconds(*times)
    if not 0 <= policy.max_missed <= MOST_MISSED:
        raise InvalidInput(
            f"at most 0 to 1,000 missed ticks are made up for, not {policy.max_missed}"
        )


def check_app(name: str) -> None:
    """Raise InvalidInput for a name that no app can have."""
    if "/" in name:
        raise InvalidInput(f"{name!r} cannot be the name of an app")
    checked(check_reference, "a schedule", name)


def check_overlap(overlap: str) -> None:
    """Raise InvalidInput for a policy of overlap that there is not."""
    if overlap not in get_args(Overlap):
        raise InvalidInput(f"{overlap!r} is not a policy of overlap")


def check_range(first: int, last: int, now: int) -> None:
    """Raise InvalidInput for a backfill that ends in the future or before it begins."""
    if abs(first) > _FARTHEST:
        raise InvalidInput(f"a first moment at {first} µs is centuries away")
    if last < first or last > now:
        raise InvalidInput(
            f"a backfill is of ticks that have passed: from {to_datetime(first)} to "
            f"{last} µs ends {'before it begins' if last < first else 'in the future'}"
        )


def _check_when(name: str, when: When) -> None:
    if (when.cron is None) == (when.every_seconds is None):
        raise InvalidInput(f"schedule {name} needs a cron expression or an interval, and not both")
    if when.every_seconds is not None and not 1 <= when.every_seconds <= LONGEST_SECONDS:
        raise InvalidInput(f"an interval is 1 to 10,000,000,000 seconds, not {when.every_seconds}")
    check_text("cron expression", when.cron or "")
    check_id("time zone", when.timezone)
    for at in (when.anchor, when.starts_at, when.ends_at):
        if at is not None and abs(at) > _FARTHEST:
            raise InvalidInput(f"a moment at {at} µs is centuries away")
    if when.starts_at is not None and when.ends_at is not None and when.ends_at < when.starts_at:
        raise InvalidInput(f"schedule {name} ends before it starts")
