"""What a replay needs to know of a run besides its log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.events import FORKED, TYPES, WORKFLOW_STARTED, read_forked
from holdfast.runtime.turn.turn import RunInfo
from holdfast.store.port import Store
from holdfast.types import Event, RunRecord


def check_log(log: Sequence[Event]) -> None:
    """Raise ConfigurationError for a log that this release cannot replay."""
    if not log or log[0].type != WORKFLOW_STARTED:
        raise ConfigurationError("its log has no beginning: the first entry is not WorkflowStarted")
    if unknown := [each.type for each in log if each.type not in TYPES]:
        raise ConfigurationError(
            f"its log has entries of type {unknown[0]}, which this release of holdfast does not "
            "know: check with the release that the workers have"
        )


def info_of(run: RunRecord, log: Sequence[Event], clock_at: int | None = None) -> RunInfo:
    """Return what the code of a run knows of it."""
    started = run.started_at or log[0].at
    return RunInfo(
        run.run_id,
        run.name,
        run.version,
        1,
        clock_at or started,
        run.parent_run_id,
        run.key,
        run.headers,
        None if clock_at is None else started,
    )


async def clocks_of_forks(store: Store, logs: dict[UUID, list[Event]]) -> dict[UUID, int]:
    """Return when the clock of each fork's code began: at the first claim of its first origin."""
    origins: dict[UUID, UUID] = {}
    for run_id, log in logs.items():
        for event in log:
            if event.type == FORKED:
                with suppress(msgspec.DecodeError):  # the rehearsal says what cannot be read
                    origins[run_id] = read_forked(event.details or "").seed
    if not origins:
        return {}
    found = await store.get_runs(list({*origins.values()}), payloads=False)
    began = {run_id: found[of].started_at for run_id, of in origins.items() if of in found}
    return {run_id: at for run_id, at in began.items() if at is not None}
