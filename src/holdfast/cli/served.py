"""Which queues and workflows there are: who serves them, what is paused, what waits in vain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import click

from holdfast.cli.settings import Settings
from holdfast.cli.workers_live import live_workers
from holdfast.moments import to_datetime
from holdfast.types import Pause, Scope, WorkerInfo

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link


@dataclass(frozen=True, slots=True)
class Served:
    """A queue or a workflow: how many live workers serve it, and what is known besides.

    `unserved` counts the tasks that are due and that no live worker claims.
    """

    name: str
    workers: int
    versions: tuple[int, ...]
    paused: bool
    reason: str | None
    paused_at: datetime | None
    unserved: int


def names_served(scope: Scope, worker: WorkerInfo) -> set[str]:
    """Return the queues or the workflows of a worker; its activities are none."""
    if scope == "queue":
        return set(worker.queues)
    return {name for name, _ in _versions([worker])}


async def find_served(link: Link, scope: Scope) -> list[Served]:
    """Return every queue or workflow that a worker, a pause or a waiting task names."""
    workers = live_workers(await link.store.list_workers(), await link.store.now())
    pauses = {each.name: each for each in await link.store.list_pauses() if each.scope == scope}
    waiting: dict[str, int] = {}
    for queue, handler, tasks in await link.store.unserved():
        name, _, version = handler.rpartition("@")
        if scope == "queue" or version != "0":
            key = queue if scope == "queue" else name
            waiting[key] = waiting.get(key, 0) + tasks
    names = {name for worker in workers for name in names_served(scope, worker)}
    return [
        _served(scope, name, workers, pauses.get(name), waiting.get(name, 0))
        for name in sorted(names | pauses.keys() | waiting.keys())
    ]


def _served(
    scope: Scope, name: str, workers: Sequence[WorkerInfo], pause: Pause | None, unserved: int
) -> Served:
    serving = [each for each in workers if name in names_served(scope, each)]
    versions = {version for known, version in _versions(serving) if known == name}
    return Served(
        name=name,
        workers=len(serving),
        versions=tuple(sorted(versions)) if scope == "workflow" else (),
        paused=pause is not None,
        reason=pause.reason if pause else None,
        paused_at=to_datetime(pause.paused_at) if pause else None,
        unserved=unserved,
    )


def _versions(workers: Iterable[WorkerInfo]) -> set[tuple[str, int]]:
    """Return the workflows that workers have, with their versions; an activity's is 0."""
    handlers = {handler.rpartition("@") for worker in workers for handler in worker.handlers}
    return {(name, int(version)) for name, _, version in handlers if version != "0"}


def show_served(settings: Settings, scope: Scope) -> None:
    """List the queues or the workflows."""
    from holdfast.cli.connecting import with_link
    from holdfast.cli.console import console, write_json
    from holdfast.cli.render_served import served_table

    async def work(link: Link) -> tuple[list[Served], int]:
        return await find_served(link, scope), await link.store.now()

    found, now = with_link(settings, work)
    if settings.json:
        write_json(found)
    elif found:
        console().print(served_table(scope, found, now))
    else:
        click.echo(f"no live worker serves a {scope}, and none is paused", err=True)
