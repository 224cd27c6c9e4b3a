"""Queues and workers: what is served by whom, what is paused, and what limits hold back."""

from __future__ import annotations

from holdfast.insight.limits import limit_text
from holdfast.insight.serving import is_silent, read_served
from holdfast.server.pages.view import Page, Redirect, View
from holdfast.server.problems import Problem


async def queues_page(view: View) -> Page:
    """Return the queues, and the limits with their use."""
    limits = await view.store.list_limits()
    return Page(
        template="queues.html",
        title="Queues",
        place="/queues",
        parts={"all": "parts/queues.html"},
        values={
            "queues": await read_served(view.store, "queue"),
            "limits": [(limit_text(each.rule), each) for each in limits],
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
    return Page(
        template="workers.html",
        title="Workers",
        place="/workers",
        parts={"all": "parts/workers.html"},
        values={"workers": [(each, is_silent(each, now)) for each in found]},
    )


def _name(view: View) -> str:
    name = view.form.get("name", "").strip()
    if not name:
        raise Problem(400, "bad-form", "name a queue")
    return name
