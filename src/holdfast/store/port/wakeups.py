"""The topics of wake-ups, and what their payloads say."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from holdfast.types import EndStatus

_TOLD_BYTES: Final = 7000  # PostgreSQL takes payloads of up to 7,999 bytes
WORK_TOPIC: Final = "work"  # payload: a queue that has new work
STARTS_TOPIC: Final = "starts"  # as work, of runs and steps that any worker may begin at once
ACTIVITIES_TOPIC: Final = "activities"  # as work, of activities
HINTED_TOPICS: Final = (STARTS_TOPIC, ACTIVITIES_TOPIC)  # told to one worker, by stores with hints
DELIVERIES_TOPIC: Final = "deliveries"  # there is something to deliver to URLs
FORWARDS_TOPIC: Final = "forwards"  # something is to be sent to another shard
SCHEDULES_TOPIC: Final = "schedules"  # schedulers have something to look at; payload: what


def worker_topic(worker_id: str) -> str:
    """Return the name of a worker's topic.

    A payload is the id of a run that the worker holds and that has unread events, or `RUN KEY`:
    an activity that the worker executes and that must stop.
    """
    return f"worker/{worker_id}"


def stream_topic(run_id: UUID) -> str:
    """Return the name of the topic of a run's streams. A payload is the name of a stream."""
    return f"stream/{run_id}"


def messages_topic(queue: str) -> str:
    """Return the name of a message queue's topic. A payload is the queue's name."""
    return f"messages/{queue}"


def end_payload(run_id: UUID, status: EndStatus, output: str | None) -> str:
    """Return the payload that announces a run's end: its id, and its output if that is small.

    >>> end_payload(UUID(int=1), "completed", '{"ok":true}')
    '00000000-0000-0000-0000-000000000001 {"ok":true}'
    """
    if status == "completed" and output is not None and len(output.encode()) <= _TOLD_BYTES:
        return f"{run_id} {output}"
    return str(run_id)


def read_end(payload: str) -> tuple[UUID, str | None]:
    """Return the run's id from an end's payload, and its output if the payload has it."""
    run_id, _, output = payload.partition(" ")
    return UUID(run_id), output or None
