"""Message queues and topics: what there is, who subscribes, and what could not be delivered."""

from __future__ import annotations

from typing import Final

from holdfast.server.pages.view import Page, Redirect, View
from holdfast.server.problems import Problem
from holdfast.types import QueueTarget, RunTarget, UrlTarget

_MOST: Final = 100
_DONE: Final = {
    "redrive": "Dead deliveries are delivered again.",
    "discard": "Dead deliveries were deleted.",
}


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
    await view.client.topics.redrive(_ids(view))
    return Redirect("/messages?done=redrive")


async def discard(view: View) -> Redirect:
    """Delete a dead delivery, or all."""
    await view.client.topics.discard(_ids(view))
    return Redirect("/messages?done=discard")


def _ids(view: View) -> list[int] | None:
    text = view.form.get("id", "")
    if text == "all":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Problem(400, "bad-form", "id is the number of a delivery, or all")
    return [int(text)]
