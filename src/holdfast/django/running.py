"""The workflow that runs a task of Django: one step, which calls the task's function."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections
from django.utils import timezone
from django.utils.module_loading import import_string

from holdfast.definitions.app import App
from holdfast.definitions.middleware import Middleware
from holdfast.definitions.steps import current_step
from holdfast.django.apps import own_backends
from holdfast.django.connection import async_connections
from holdfast.django.framework import (
    AnyResult,
    AnyTask,
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from holdfast.retry import Retry
from holdfast.runtime.code.context import Context
from holdfast.types import DEFAULT_QUEUE

NAME: Final = "django-task"


@dataclass(frozen=True, kw_only=True)
class TaskCall:
    """A call of a task: the input of a run. `task` is the path of the task in its module."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    queue_name: str
    priority: int
    enqueued_at: datetime
    run_after: datetime | None = None
    takes_context: bool = False
    is_async: bool = False
    attempts: int = 3

    def found_task(self) -> AnyTask:
        """Return the task as it was enqueued. Raises ImportError if its module has it no more."""
        found = import_string(self.task)
        if isinstance(found, Task):
            found = found.func
        return Task(
            func=found,
            priority=self.priority,
            backend=self.backend,
            queue_name=self.queue_name,
            run_after=self.run_after,
            takes_context=self.takes_context,
        )

    def result(self, run_id: UUID, status: TaskResultStatus, **known: Any) -> AnyResult:
        """Return the result of this call, as far as it is known."""
        fields: dict[str, Any] = {
            "enqueued_at": self.enqueued_at,
            "started_at": None,
            "finished_at": None,
            "last_attempted_at": None,
            "errors": [],
            "worker_ids": [],
        }
        return TaskResult(
            task=self.found_task(),
            id=str(run_id),
            status=status,
            args=self.args,
            kwargs=self.kwargs,
            backend=self.backend,
            **(fields | known),
        )


@cache
def task_app(reference: str | None) -> App:
    """Return the app whose workers run tasks: that of a dotted path, else one of its own.

    Its own has the name of the project: the package of the settings. Its workers serve the queues
    of the backends that name it. Raises ImproperlyConfigured if the path leads to something else.
    """
    backends = [each for each in own_backends() if each.get("OPTIONS", {}).get("app") == reference]
    queues = {queue for each in backends for queue in each.get("QUEUES", [DEFAULT_QUEUE])}
    if reference is None:
        module: str | None = getattr(settings, "SETTINGS_MODULE", None)
        app = App((module or "django").partition(".")[0])
    else:
        app = import_string(reference.replace(":", "."))
        if not isinstance(app, App):
            raise ImproperlyConfigured(f"{reference} is {app!r}, and not an App of holdfast")
    app.add_middleware(_Connections())
    for queue in queues:
        if queue not in app.queues():
            app.queue(queue)
    plain, asynchronous = app.step(name=NAME)(_run), app.step(name=f"{NAME}-async")(_run_async)

    @app.workflow(name=NAME)
    async def task(ctx: Context, call: TaskCall) -> Any:
        """Run a task of Django: its function is called in a step."""
        step = asynchronous if call.is_async else plain
        return await step.with_options(retry=Retry(attempts=call.attempts))(call)

    return app


def _run(call: TaskCall) -> Any:
    """Call the function of a task, in a thread of the worker."""
    attempt = _Attempt(call)
    try:
        value = normalize_json(attempt.task.call(*attempt.args, **call.kwargs))
    except Exception as error:
        attempt.failed(error)
        raise
    attempt.completed(value)
    return value


async def _run_async(call: TaskCall) -> Any:
    """Call the function of a task that is asynchronous, on the worker's event loop.

    What is synchronous in Django has a thread of its own, with its connections: one for all tasks.
    """
    async with async_connections():
        attempt = await sync_to_async(_Attempt)(call)
        try:
            value = normalize_json(await attempt.task.acall(*attempt.args, **call.kwargs))
        except Exception as error:
            await sync_to_async(attempt.failed)(error)
            raise
        await sync_to_async(attempt.completed)(value)
        return value


class _Connections(Middleware):
    """Closes the connections that Django has in a thread when they are old, or were lost.

    As Django does before and after each request: it never uses a lost connection again otherwise.
    """

    def in_thread(self, call: Callable[[], object]) -> object:
        close_old_connections()
        try:
            return call()
        finally:
            close_old_connections()


class _Attempt:
    """One attempt to run a task, and the signals that Django sends of it.

    What a receiver of a signal raises is logged: it must not repeat the task.
    """

    def __init__(self, call: TaskCall) -> None:
        step, now = current_step(), timezone.now()
        self._is_last = step.attempt >= call.attempts
        self._result = call.result(
            step.run_id,
            TaskResultStatus.RUNNING,
            started_at=now,
            last_attempted_at=now,
            worker_ids=[f"{socket.gethostname()}:{os.getpid()}"] * step.attempt,
        )
        self.task = self._result.task
        self.args = call.args
        if call.takes_context:
            self.args = [TaskContext(task_result=self._result), *call.args]
        task_started.send_robust(type(self.task.get_backend()), task_result=self._result)

    def completed(self, value: object) -> None:
        """Tell the receivers that the task has a value."""
        object.__setattr__(self._result, "_return_value", value)
        self._finished(TaskResultStatus.SUCCESSFUL)

    def failed(self, error: Exception) -> None:
        """Tell the receivers that the task has failed, if it is not tried again."""
        kind = type(error)
        self._result.errors.append(
            TaskError(
                exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
                traceback="".join(traceback.format_exception(error)),
            )
        )
        if self._is_last:
            self._finished(TaskResultStatus.FAILED)

    def _finished(self, status: TaskResultStatus) -> None:
        object.__setattr__(self._result, "finished_at", timezone.now())
        object.__setattr__(self._result, "status", status)
        task_finished.send_robust(type(self.task.get_backend()), task_result=self._result)
