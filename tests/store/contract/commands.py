"""The commands that workflows write, as events."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

from holdfast.client.activities import read_token
from holdfast.definitions.activities import ActivityContext
from holdfast.store.port import Store
from holdfast.types import ANY_END, ActivityEnd, ClaimedTask, Decision, Event

from .actors import ManualWorker, start

RESIZE = ("resize@0",)
NO_JITTER = {
    "attempts": 3,
    "backoff": "exp",
    "base": 1.0,
    "max": 60.0,
    "factor": 2.0,
    "jitter": 0.0,
}
FAILURE = '{"kind":"builtins.OSError","message":"no such picture"}'


def command(event_type: str, call: str, /, **details: Any) -> Event:
    """Return a command."""
    return Event(event_type, call, json.dumps(details) if details else None, 0)


def activity(key: str = "resize", **fields: Any) -> Event:
    """Return an ActivityScheduled; `retry` is what differs from three attempts."""
    details: dict[str, Any] = {
        "activity_name": "resize",
        "args": 7,
        "input": [["a.png"], {}],
        "queue": "default",
        "start_to_close": None,
        "schedule_to_close": None,
        "heartbeat_timeout": None,
    }
    retry = {**NO_JITTER, **fields.pop("retry", {})}
    return command("ActivityScheduled", key, **{**details, **fields, "retry": retry})


def cancelled_activity(key: str = "resize") -> Event:
    """Return an ActivityCancelRequested."""
    return command("ActivityCancelRequested", key)


def child(run_id: UUID, call: str = "child", **fields: Any) -> Event:
    """Return a ChildStarted of the workflow `order`, awaited unless the fields say otherwise."""
    details: dict[str, Any] = {
        "workflow_name": "order",
        "version": 1,
        "args": 7,
        "child_run_id": str(run_id),
        "input": {"b": 1e300, "a": 2},
        "queue": "default",
        "priority": 2,
        "key": None,
        "parent_close": "cancel",
        "timeout": None,
        "retention": None,
        "tags": [],
    }
    return command("ChildStarted", call, **{**details, **fields})


def approval(key: str = "approve", **fields: Any) -> Event:
    """Return an ApprovalRequested."""
    details = {"title": "Pay?", "description": "", "fields": [], "timeout_at": None}
    return command("ApprovalRequested", key, **{**details, **fields})


def decision(run_id: UUID, decision_id: str = "d-1", **fields: Any) -> Decision:
    """Return a yes to the approval `approve`."""
    return Decision(
        **{
            "run_id": run_id,
            "key": "approve",
            "decision_id": decision_id,
            "approved": True,
            **fields,
        }
    )


def failed(
    event_type: str = "WorkflowFailed",
    calls: tuple[str, ...] | None = None,
    seen: int = 0,
    **after: tuple[str, ...],
) -> Event:
    """Return the last event of a run that failed, by these calls; None says nothing of them."""
    said = None if calls is None else json.dumps({"calls": calls, "seen": seen, **after})
    return Event(event_type, None, said, 0)


async def ordered(store: Store, worker: ManualWorker, *orders: Event) -> UUID:
    """Start a run that orders something and waits for an end of it."""
    run_id = await start(store)
    await worker.command(await worker.take(), *orders, awaiting=(ANY_END,))
    return run_id


async def started_child(
    store: Store, worker: ManualWorker, *, awaiting: tuple[str, ...] = (ANY_END,), **fields: Any
) -> tuple[UUID, UUID]:
    """Start a run with a child, and suspend it; return the ids of both."""
    run_id, child_id = await start(store), uuid4()
    await worker.command(await worker.take(), child(child_id, **fields), awaiting=awaiting)
    return run_id, child_id


async def end_from_outside(store: Store, task: ClaimedTask, **fields: Any) -> str:
    """End an attempt as one who has its token; return what became of it."""
    run_id, lease_no, key = read_token(ActivityContext(task, is_async=False).token)
    end = ActivityEnd(run_id=run_id, key=key, lease_no=lease_no, **fields)
    [outcome] = (await store.end_activities(None, [end])).outcomes
    return outcome
