"""Message queues, each with its messages, and topics: who subscribes, what is not delivered."""

from __future__ import annotations

from typing import Final

from holdfast.insight.limits import limits_of_messages, use_text
from holdfast.server.pages.rendering import url_query
from holdfast.server.pages.view import Page, Redirect, View
from holdfast.server.problems import Problem
from holdfast.types import QueueTarget, RunTarget, UrlTarget

_MOST: Final = 100
_SEARCHED: Final = 10_000  # messages of a queue that has the dead letters of several
_CLIP: Final = 1_000  # characters of a payload: more than are shown
_DONE: Final = {
    "redrive": "Dead deliveries are delivered again.",
    "discard": "Dead deliveries were deleted.",
}
_DONE_IN_QUEUE: Final = {"redrive": "Dead letters were moved back: they are due at once."}


async def messages_page(view: View) -> Page:
    """Return message queues, subscriptions, and deliveries that are not done."""
    counts = {each.name: each for each in await view.reader.queues.metrics()}
    subscriptions = await view.reader.topics.list(limit=_MOST)
    return Page(
        template="messages.html",
        title="Messages",
        place="/messages",
        parts={"all": "parts/messages.html"},
        values={
            "queues": [
                (each, counts.get(each.settings.name)) for each in await view.reader.queues.list()
            ],
            "subscriptions": [(each, target_text(each.target)) for each in subscriptions],
            "deliveries": await view.reader.topics.deliveries(limit=_MOST),
            "most": _MOST,
            "done": _DONE.get(view.param("done"), ""),
        },
    )


def target_text(target: object) -> str:
    """Return what an event of a subscription does."""
    match target:
        case RunTarget():
            return f"starts {target.name}"
        case QueueTarget():
            return f"goes to queue {target.queue}"
        case UrlTarget():
            return f"is sent to {target.url}"
        case _:
            return "is received by a run"


async def redrive(view: View) -> Redirect:
    """Deliver a dead delivery again, or all."""
    await view.client.topics.redrive(_ids(view, "delivery"))
    return Redirect("/messages?done=redrive")


async def discard(view: View) -> Redirect:
    """Delete a dead delivery, or all."""
    await view.client.topics.discard(_ids(view, "delivery"))
    return Redirect("/messages?done=discard")


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
            "done": _DONE_IN_QUEUE.get(view.param("done"), ""),
        },
    )


async def redrive_queue(view: View) -> Redirect:
    """Move a dead letter back to its queue, or all."""
    name = view.form.get("name", "")
    await view.client.queues.redrive(name, _ids(view, "message"))
    return Redirect(f"/message-queue{url_query({'name': name, 'done': 'redrive'})}")


def _ids(view: View, what: str) -> list[int] | None:
    text = view.form.get("id", "")
    if text == "all":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Problem(400, "bad-form", f"id is the number of a {what}, or all")
    return [int(text)]
