"""The backend of Django's tasks: each is a run, started in the transaction of its caller."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from inspect import iscoroutinefunction
from typing import Any, Final
from uuid import UUID

import msgspec
from django.conf import settings
from django.core import checks
from django.db import connections
from django.utils import timezone

from holdfast.codec import decode_error
from holdfast.definitions.app import App
from holdfast.django.apps import Place, places
from holdfast.django.connection import problem_of, store_on
from holdfast.django.framework import (
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    TaskError,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from holdfast.django.running import NAME, TaskCall, task_app
from holdfast.django.starting import start_at
from holdfast.events import STEPS
from holdfast.payloads.store import with_payloads
from holdfast.sync.portal import finish
from holdfast.types import ErrorInfo, Event, RunRecord
from holdfast.values.ids import uuid7
from holdfast.values.moments import maybe_datetime

_PRIORITIES: Final = {100: 0, 50: 1, 0: 2, -50: 3, -100: 4}  # Django's, and those of runs
_OPTIONS: Final = ("app", "attempts", "database", "schema")


class TaskBackend(BaseTaskBackend):
    """Keeps tasks as runs in PostgreSQL, where workers of `manage.py holdfast worker` find them.

    `TASKS["…"]["OPTIONS"]` may have:

    - `database`: the alias of Django's database, by default `default`. A task is enqueued over the
      connection that Django has there, so within `transaction.atomic` it exists once that commits.
    - `attempts`: how often a task that raises is tried, by default 3.
    - `app`: the dotted path of an App whose workers run the tasks beside its workflows, such as
      `shop.workflows.app`. By default it is one of its own, with the name of the project.
    - `schema`: the schema of holdfast in the database, by default `holdfast`.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.place = Place.of(self.options)
        self._attempts: int = self.options.get("attempts", 3)

    def validate_task(self, task: AnyTask) -> None:
        """Refuse a priority that is not one of five, besides what Django refuses."""
        super().validate_task(task)
        if task.priority not in _PRIORITIES:
            known = ", ".join(map(str, sorted(_PRIORITIES)))
            raise InvalidTask(f"the priority is one of {known}, not {task.priority}")

    def check(self, **kwargs: Any) -> list[Any]:
        """Return what is wrong with the settings."""
        found: list[checks.CheckMessage] = []
        if unknown := sorted(set(self.options) - set(_OPTIONS)):
            text = f"TASKS[{self.alias!r}]: there is no option {', '.join(unknown)}"
            found.append(checks.Error(text, f"There are {', '.join(_OPTIONS)}.", id="holdfast.E1"))
        database = self.place.database
        if database not in connections:
            text = f"TASKS[{self.alias!r}]: there is no database {database!r} in DATABASES"
            found.append(checks.Error(text, id="holdfast.E2"))
        elif problem := problem_of(connections[database]):
            found.append(checks.Error(problem, id="holdfast.E3"))
        if self.place != (first := places()[0]):
            text = f"TASKS[{self.alias!r}]: `manage.py holdfast worker` does not run its tasks"
            hint = (
                f"A worker runs those of the first backend of holdfast, at {first}, and these are "
                f"at {self.place}. Give them the same place, or run workers with `--settings` "
                "whose TASKS has this one first."
            )
            found.append(checks.Warning(text, hint, id="holdfast.W1"))
        return found

    def enqueue(  # type: ignore[override]  # the result is that of the task
        self, task: AnyTask, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> AnyResult:
        """Start a run, over Django's connection, and return what is known of it.

        Raises TypeError and ValueError for arguments that JSON cannot hold.
        """
        self.validate_task(task)
        run_id, run_after = uuid7(), task.run_after
        if run_after is not None and timezone.is_naive(run_after):
            run_after = timezone.make_aware(run_after)
        call = TaskCall(
            task=task.module_path,
            args=list(args),
            kwargs=kwargs,
            backend=self.alias,
            queue_name=task.queue_name,
            priority=task.priority,
            enqueued_at=timezone.now(),
            run_after=run_after,
            takes_context=task.takes_context,
            is_async=iscoroutinefunction(task.func),
            attempts=self._attempts,
        )
        result = call.result(run_id, TaskResultStatus.READY)
        start_at(
            self.place,
            self.app.latest(NAME),
            call,
            run_id=run_id,
            queue=task.queue_name,
            priority=_PRIORITIES[task.priority],
            start_at=run_after,
            tags=[call.task],
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> AnyResult:
        """Return what is known of a task, as Django's transaction sees it.

        Each attempt has an entry in `worker_ids`, which is empty where the worker is not known.
        Raises TaskResultDoesNotExist.
        """
        try:
            run_id = UUID(result_id)
        except (ValueError, TypeError, AttributeError):
            raise TaskResultDoesNotExist(result_id) from None
        store = store_on(self.place.database, self.place.schema)
        store = with_payloads(store, self.app.payloads)
        run = finish(store.get_runs([run_id])).get(run_id)
        if run is None or (run.app, run.name) != (self.app.name, NAME):
            raise TaskResultDoesNotExist(result_id)
        return _result_of(run, finish(store.read_events([(run_id, 1)])).get(run_id, []))

    @property
    def app(self) -> App:
        """The app whose workers run the tasks."""
        return task_app(self.place.app)


class _End(msgspec.Struct):
    """How an attempt of a task ended: what events of steps have in common."""

    attempt: int = 1
    error: ErrorInfo | None = None
    started_at: int | None = None


_read_end = msgspec.json.Decoder(_End).decode


def _result_of(run: RunRecord, log: Sequence[Event]) -> AnyResult:
    """Return the result of a task whose run and log these are."""
    call = msgspec.json.decode(run.input or "", type=TaskCall)
    ends = [_read_end(each.details or "{}") for each in log if each.type in STEPS]
    errors = [end.error for end in ends if end.error is not None]
    if run.error is not None and not errors:  # it never came to an attempt, or was ended
        errors.append(decode_error(run.error))
    running = run.state == "running"
    attempts = max((end.attempt for end in ends), default=0) + running
    status = TaskResultStatus.RUNNING if running else TaskResultStatus.READY
    if run.status != "running":
        completed = run.status == "completed"
        status = TaskResultStatus.SUCCESSFUL if completed else TaskResultStatus.FAILED
    began = max((end.started_at for end in ends if end.started_at), default=run.started_at)
    result = call.result(
        run.run_id,
        status,
        enqueued_at=_moment(run.created_at),
        started_at=_moment(run.started_at),
        finished_at=_moment(run.completed_at),
        last_attempted_at=_moment(began),
        errors=[
            TaskError(exception_class_path=each.kind, traceback=each.format()) for each in errors
        ],
        worker_ids=[""] * (attempts - running) + [_worker(run)] * running,
    )
    if run.status == "completed":
        object.__setattr__(result, "_return_value", msgspec.json.decode(run.output or "null"))
    return result


def _moment(at: int | None) -> datetime | None:
    """Return a moment as Django has it: without a time zone if USE_TZ is off."""
    moment = maybe_datetime(at)
    return moment if moment is None or settings.USE_TZ else timezone.make_naive(moment)


def _worker(run: RunRecord) -> str:
    return (run.wait and run.wait.worker) or ""
