"""The table of pages: each has the level that it needs, and what it takes."""

from __future__ import annotations

from typing import Final

from holdfast.server.pages import (
    actions,
    approvals,
    bulk,
    doctor,
    messages,
    overview,
    run,
    runs,
    schedules,
    serving,
    workflows,
)
from holdfast.server.pages.view import Row

_RUN: Final = ("tab", "done", "after", "only", "stream", "level", "call")
_FORK: Final = ("run_id", "step", "index", "input", "results")
_BULK: Final = ("do", "run", *runs.FILTERS)
_CHANGE: Final = ("do", "count", "typed", "job", "reason", "name", "payload")
_START: Final = ("name", "run_id", "input", "key", "queue", "delay", "f.NAME")
_PAUSE: Final = ("name", "reason")
_TICKS: Final = ("name", "reason", "at", "overlap", "first", "last", "id")

TABLE: Final[tuple[Row, ...]] = (
    Row("GET", "/", "read", overview.overview, ("span",)),
    Row("GET", "/runs", "read", runs.list_page, (*runs.FILTERS, "cursor", "ids")),
    Row("GET", "/runs/{run}", "read", run.run_page, _RUN),
    Row("GET", "/runs/{run}/timeline", "read", run.timeline_window, ("from", "fold", "only")),
    Row("GET", "/runs/{run}/download/{what}", "read", run.download),
    Row("GET", "/runs/{run}/fork", "write", actions.fork_page, ("step", "index", "input_of")),
    Row("POST", "/runs/{run}/fork", "write", actions.fork, (), _FORK),
    *(
        Row("POST", f"/runs/{{run}}/do/{name}", level, do, (), fields)
        for name, (level, do, fields) in actions.DO.items()
    ),
    Row("GET", "/bulk", "write", bulk.bulk_page, _BULK),
    Row("POST", "/bulk", "write", bulk.start, _BULK, _CHANGE),
    Row("GET", "/bulk/{job}", "write", bulk.job_page, _BULK),
    Row("POST", "/bulk/{job}/stop", "write", bulk.stop),
    Row("GET", "/approvals", "read", approvals.inbox, ("run", "done")),
    Row("GET", "/workflows", "read", workflows.workflows_page),
    Row("GET", "/workflow", "read", workflows.workflow_page, ("name", "span")),
    Row("POST", "/workflows/start", "write", workflows.start, (), _START),
    Row("POST", "/workflows/pause", "admin", workflows.pause, (), _PAUSE),
    Row("POST", "/workflows/resume", "admin", workflows.resume, (), ("name",)),
    Row("GET", "/schedules", "read", schedules.schedules_page, ("after",)),
    Row("GET", "/schedule", "read", schedules.schedule_page, ("name", "done")),
    Row("POST", "/schedules/do/{do}", "write", schedules.change, (), _TICKS),
    Row("GET", "/queues", "read", serving.queues_page),
    Row("POST", "/queues/pause", "admin", serving.pause_queue, (), _PAUSE),
    Row("POST", "/queues/resume", "admin", serving.resume_queue, (), ("name",)),
    Row("GET", "/messages", "read", messages.messages_page, ("done",)),
    Row("GET", "/message-queue", "read", messages.queue_page, ("name", "done")),
    Row("POST", "/message-queue/redrive", "write", messages.redrive_queue, (), ("name", "id")),
    Row("POST", "/messages/redrive", "write", messages.redrive, (), ("id",)),
    Row("POST", "/messages/discard", "write", messages.discard, (), ("id",)),
    Row("GET", "/workers", "read", serving.workers_page),
    Row("GET", "/doctor", "read", doctor.doctor),
)
