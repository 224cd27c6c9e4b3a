"""Schedules that start no run: they publish to a topic, or send to a message queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from holdfast.codec import encode
from holdfast.errors import ConfigurationError
from holdfast.types import PRIORITIES, NewSchedule, Overlap, SendTarget, Target, TickPolicy
from holdfast.values.names import check_queue_name
from holdfast.values.numbers import whole_number
from holdfast.values.patterns import check_topic
from holdfast.values.texts import check_headers, check_id, clipped

_OF_MESSAGES: Final = ("group", "priority", "headers")
_OF_RUNS: Final = ("version", "queue", "timeout", "retention", "tags", "attributes")


def send_target(
    topic: str | None, message_queue: str | None, input: object, options: Mapping[str, Any]
) -> SendTarget:
    """Return what each tick publishes or sends. Raises ConfigurationError and PayloadError."""
    if (topic is None) == (message_queue is None):
        raise ConfigurationError("give a topic or a message_queue, not both")
    if wrong := [name for name in _OF_RUNS if options.get(name) not in (None, (), {})]:
        raise ConfigurationError(
            f"{', '.join(wrong)}: an option of runs, and this schedule starts none"
        )
    if topic is not None:
        if wrong := [name for name in _OF_MESSAGES if options.get(name) is not None]:
            raise ConfigurationError(
                f"{', '.join(wrong)}: an option of messages, and this schedule publishes events"
            )
        return SendTarget(kind="topic", name=check_topic(topic), input=encode(input))
    group, priority = options.get("group"), options.get("priority")
    if priority is not None:
        whole_number(priority, "a message", "priority", 0, PRIORITIES[-1])
    return SendTarget(
        kind="queue",
        name=check_queue_name(message_queue or ""),
        input=encode(input),
        group=None if group is None else check_id("group", group),
        priority=priority,
        headers=check_headers(options.get("headers")),
    )


def default_policy(target: Target) -> TickPolicy:
    """Return the policy of a schedule with this target that says nothing of it."""
    return TickPolicy(overlap="allow") if isinstance(target, SendTarget) else TickPolicy()


def check_sender(new: NewSchedule) -> NewSchedule:
    """Return a schedule. Raises ConfigurationError for a policy that its target cannot have."""
    target, policy = new.target, new.policy
    if isinstance(target, SendTarget):
        check_overlap_of(target, policy.overlap)
        if target.kind == "topic" and policy.jitter_seconds:
            raise ConfigurationError("jitter: an event is published at its tick, never later")
    return new


def check_overlap_of(target: Target, overlap: str | None) -> None:
    """Raise ConfigurationError for a policy of overlap that there is not, or not for a sender."""
    if overlap is not None and overlap not in get_args(Overlap):
        known = ", ".join(get_args(Overlap))
        raise ConfigurationError(f"overlap is one of {known}, not {clipped(overlap)}")
    if isinstance(target, SendTarget) and overlap not in (None, "allow"):
        does = "publishes to a topic" if target.kind == "topic" else "sends to a message queue"
        raise ConfigurationError(
            f"overlap: a schedule that {does} starts no run that could overlap, so it is "
            f"'allow', not {overlap!r}"
        )
