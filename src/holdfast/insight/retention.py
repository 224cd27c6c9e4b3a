"""Check that ended runs are deleted when their retention is over."""

from __future__ import annotations

from typing import Final

from holdfast.insight.actions import Action
from holdfast.insight.findings import Finding
from holdfast.insight.wording import ago, length, several
from holdfast.store.port import Store

_LATE: Final = 1_800_000_000  # microseconds; a sweeper that runs every 5 minutes is not as late
_COUNTED: Final = 10_000


async def check_sweeper(store: Store) -> Finding:
    """Check that runs are deleted whose retention is over."""
    state, now = await store.get_sweeper(limit=_COUNTED), await store.now()
    due = f"{_COUNTED:,} runs or more" if state.due >= _COUNTED else several(state.due, "run")
    if state.error is not None and state.failed_at is not None:
        return Finding(
            "sweeper",
            "warn",
            f"the pass {ago(state.failed_at, now)} failed, {due} to delete: {state.error}",
            action=Action("sweep"),
        )
    if state.oldest is None or now - state.oldest < _LATE:
        last = "" if state.ended_at is None else f"; the last pass ended {ago(state.ended_at, now)}"
        return Finding("sweeper", "ok", f"{due} to delete{last}")
    late = f"{due} to delete, the oldest for {length(now - state.oldest)}"
    if state.holder is not None:
        return Finding("sweeper", "ok", f"{late}; {state.holder} is deleting them")
    if state.begun_at is not None and now - state.begun_at < _LATE:
        return Finding("sweeper", "ok", f"{late}; a pass began {ago(state.begun_at, now)}")
    return Finding(
        "sweeper",
        "warn",
        f"{late}; nobody sweeps",
        "or start a worker: workers sweep unless HOLDFAST_SWEEPER_INTERVAL is off",
        Action("sweep"),
    )
