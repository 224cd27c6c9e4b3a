"""One message queue: how much is in it, its messages, and its dead letters."""

from __future__ import annotations

from typing import Final

from holdfast.insight.limits import limits_of_messages, use_text
from holdfast.server.pages.rendering import url_query
from holdfast.server.pages.view import Page, Redirect, View
from holdfast.server.problems import Problem

_MOST: Final = 100
_SEARCHED: Final = 10_000  # of a queue that has the dead letters of several
_CLIP: Final = 1_000  # characters of a payload: more than are shown
_DONE: Final = {"redrive": "Dead letters were moved back: they are due at once."}


async def queue_page(view: View) -> Page:
    """Return a message queue with the oldest of its messages and of its dead letters."""
    name, queues = view.param("name"), view.reader.queues
    info = await queues.get(name)
    [counted] = await queues.metrics(name)
    limits = limits_of_messages(await view.store.list_limits(), name)
    letters = info.settings.dead_letters
    found = []
    if letters is not None:
        found = await view.store.reads.list_messages(letters, limit=_SEARCHED, clip=_CLIP)
    dead = [each for each in found if each.origin == name][:_MOST]
    origins = [each.settings for each in await queues.list()]
    return Page(
        template="queue.html",
        title=name,
        place="/messages",
        parts={"all": "parts/queue.html"},
        values={
            "info": info,
            "settings": info.settings,
            "count": counted,
            "limits": [use_text(each) for each in limits],
            "dead": dead,
            "failures": await view.store.message_failures([each.message_id for each in dead]),
            "messages": await view.store.reads.list_messages(name, limit=_MOST, clip=_CLIP),
            "dead_of": [each.name for each in origins if each.dead_letters == name],
            "most": _MOST,
            "done": _DONE.get(view.param("done"), ""),
        },
    )


async def redrive(view: View) -> Redirect:
    """Move a dead letter back to its queue, or all."""
    name, text = view.form.get("name", ""), view.form.get("id", "")
    if text != "all" and (not text.isascii() or not text.isdigit() or len(text) > 18):
        raise Problem(400, "bad-form", "id is the number of a message, or all")
    await view.client.queues.redrive(name, None if text == "all" else [int(text)])
    return Redirect(f"/message-queue{url_query({'name': name, 'done': 'redrive'})}")
