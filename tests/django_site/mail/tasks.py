"""Tasks of all kinds."""

import asyncio
import os
import time
from pathlib import Path

from django.db import connection
from mail.models import Sent

try:
    from django.tasks import TaskContext, task
except ImportError:
    from django_tasks import TaskContext, task


@task
def send(text: str, copies: int = 1) -> list[str]:
    for _ in range(copies):
        Sent.objects.create(text=text)
    return [sent.text for sent in Sent.objects.all()]


@task(queue_name="mail", priority=50)
async def send_async(text: str) -> str:
    sent = await Sent.objects.acreate(text=text)
    return sent.text


@task
async def read_in_chunks() -> int:
    """Read on until another asynchronous task has begun and ended in between."""
    found = 0
    async for _ in Sent.objects.aiterator(chunk_size=1):
        found += 1
        while not await Sent.objects.filter(text="between").aexists():
            await asyncio.sleep(0.01)
    return found


@task(takes_context=True)
def count(context: TaskContext, text: str) -> dict[str, object]:
    if context.attempt == 1:
        raise ValueError(text)
    return {"attempt": context.attempt, "id": context.task_result.id, "text": text}


@task
def fail(text: str) -> None:
    raise ValueError(text)


@task
def lose_connection() -> int:
    """Lose the connection of this thread once: Django would never use it again."""
    if not Sent.objects.exists():
        Sent.objects.create(text="lost")
        with connection.cursor() as cursor:
            cursor.execute("select pg_terminate_backend(pg_backend_pid())")
    return Sent.objects.count()


@task
def bad_result() -> object:
    return object()


@task
def wait_for_file(path: str) -> str:
    Path(path, str(os.getpid())).touch()
    while not Path(path, "go").exists():
        time.sleep(0.02)
    return "done"


def plain() -> None: ...


wrapped = task(plain)
