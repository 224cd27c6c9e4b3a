"""Queues and workers: what is served by whom, what is paused, and what limits hold back."""

from __future__ import annotations

from collections import Counter
from typing import Final

from holdfast.insight.limits import limit_text, waiting_text
from holdfast.insight.serving import is_silent, read_served
from holdfast.insight.wording import length_of
from holdfast.server.pages.view import Page, Redirect, View
from holdfast.server.problems import Problem

_MOST_RUNNING: Final = 1_000  # runs that are looked at for the load of workers


async def queues_page(view: View) -> Page:
    """Return the queues, and the limits with their use."""
    limits = await view.store.list_limits()
    gauges = await view.store.read_gauges()
    return Page(
        template="queues.html",
        title="Queues",
        place="/queues",
        parts={"all": "parts/queues.html"},
        values={
            "queues": await read_served(view.store, "queue"),
            "due": gauges.due,
            "oldest": {each: length_of(late) for each, late in gauges.oldest_due_seconds.items()},
            "limits": [(limit_text(each.rule), each, waiting_text(each)) for each in limits],
        },
    )


async def pause_queue(view: View) -> Redirect:
    """Pause a queue: no worker begins anything of it."""
    reason = view.form.get("reason", "").strip() or None
    await view.client.queues.pause(_name(view), reason)
    return Redirect("/queues")


async def resume_queue(view: View) -> Redirect:
    """Let workers continue with a queue."""
    await view.client.queues.resume(_name(view))
    return Redirect("/queues")


async def workers_page(view: View) -> Page:
    """Return the workers that are signed on, those that are silent too."""
    now = await view.store.now()
    found = sorted(await view.store.list_workers(), key=lambda each: each.started_at)
    running = (await view.reader.runs.list(states="running", limit=_MOST_RUNNING)).runs
    held = Counter(each.record.wait.worker for each in running if each.record.wait is not None)
    return Page(
        template="workers.html",
        title="Workers",
        place="/workers",
        parts={"all": "parts/workers.html"},
        values={
            "workers": [(each, is_silent(each, now)) for each in found],
            "held": held,
            "more": "+" if len(running) == _MOST_RUNNING else "",
        },
    )


def _name(view: View) -> str:
    name = view.form.get("name", "").strip()
    if not name:
        raise Problem(400, "bad-form", "name a queue")
    return name
