"""What people do to runs, queues and workflows: pause, resume, fork."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from holdfast.store.port import WORK_TOPIC
from holdfast.store.postgres import guests, rows
from holdfast.store.postgres.connections import Database
from holdfast.types import Delivered, Fork, Forking, Notice, Pause, Scope


async def pause_runs(database: Database, run_ids: Sequence[UUID], reason: str | None) -> Delivered:
    """Claim nothing of these runs until they are resumed."""
    return guests.delivered(await database.row("pause_runs", run_ids, reason))


async def resume_runs(database: Database, run_ids: Sequence[UUID]) -> Delivered:
    """Let paused runs go on."""
    return guests.delivered(await database.row("resume_runs", run_ids))


async def set_pause(
    database: Database, scope: Scope, name: str, paused: bool, reason: str | None
) -> tuple[bool, list[Notice]]:
    """Claim nothing of a queue or a workflow, or again."""
    row = await database.row("set_pause", scope, name, paused, reason)
    queues: list[str] = row["queues"] or []
    return row["changed"], [Notice(WORK_TOPIC, queue) for queue in queues]


async def list_pauses(database: Database) -> list[Pause]:
    """Return the queues and workflows that are paused."""
    found = await database.rows("list_pauses")
    return [Pause(row["scope"], row["name"], row["reason"], row["paused_at"]) for row in found]


async def fork_run(database: Database, fork: Fork) -> tuple[Forking, list[Notice]]:
    """Start a run with a copy of another's log."""
    results = {key: msgspec.Raw(text.encode()) for key, text in fork.results.items()}
    row = await database.row(
        "fork_run",
        fork.run_id,
        fork.new_run_id,
        fork.until,
        fork.retry,
        fork.input,
        msgspec.json.encode(results).decode() if results else None,
        fork.version,
    )
    return row["outcome"], rows.notices(row["notices"])
