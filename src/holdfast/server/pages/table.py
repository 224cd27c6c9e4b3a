"""The table of pages: each has the level that it needs."""

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

TABLE: Final[tuple[Row, ...]] = (
    Row("GET", "/", "read", overview.overview),
    Row("GET", "/runs", "read", runs.list_page),
    Row("GET", "/runs/{run}", "read", run.run_page),
    Row("GET", "/runs/{run}/timeline", "read", run.timeline_window),
    Row("GET", "/runs/{run}/download/{what}", "read", run.download),
    Row("GET", "/runs/{run}/fork", "write", actions.fork_page),
    Row("POST", "/runs/{run}/fork", "write", actions.fork),
    *(
        Row("POST", f"/runs/{{run}}/do/{name}", level, do)
        for name, (level, do) in actions.DO.items()
    ),
    Row("GET", "/bulk", "write", bulk.bulk_page),
    Row("POST", "/bulk", "write", bulk.start),
    Row("GET", "/bulk/{job}", "write", bulk.job_page),
    Row("POST", "/bulk/{job}/stop", "write", bulk.stop),
    Row("GET", "/approvals", "read", approvals.inbox),
    Row("GET", "/workflows", "read", workflows.workflows_page),
    Row("GET", "/workflow", "read", workflows.workflow_page),
    Row("POST", "/workflows/start", "write", workflows.start),
    Row("POST", "/workflows/pause", "admin", workflows.pause),
    Row("POST", "/workflows/resume", "admin", workflows.resume),
    Row("GET", "/schedules", "read", schedules.schedules_page),
    Row("GET", "/schedule", "read", schedules.schedule_page),
    Row("POST", "/schedules/do/{do}", "write", schedules.change),
    Row("GET", "/queues", "read", serving.queues_page),
    Row("POST", "/queues/pause", "admin", serving.pause_queue),
    Row("POST", "/queues/resume", "admin", serving.resume_queue),
    Row("GET", "/messages", "read", messages.messages_page),
    Row("GET", "/message-queue", "read", messages.queue_page),
    Row("POST", "/message-queue/redrive", "write", messages.redrive_queue),
    Row("POST", "/messages/redrive", "write", messages.redrive),
    Row("POST", "/messages/discard", "write", messages.discard),
    Row("GET", "/workers", "read", serving.workers_page),
    Row("GET", "/doctor", "read", doctor.doctor),
)
