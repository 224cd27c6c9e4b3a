"""The inbox: what runs ask people to decide."""

from __future__ import annotations

from typing import Final

from holdfast.server.pages.runs import DONE
from holdfast.server.pages.view import Page, View

_MOST: Final = 100


async def inbox(view: View) -> Page:
    """Return the open approvals, of all runs or of one, oldest first."""
    run = view.param("run") or None
    found = await view.reader.approvals.list(run, limit=_MOST)
    return Page(
        template="approvals.html",
        title="Approvals",
        place="/approvals",
        parts={"all": "parts/approvals.html"},
        values={
            "approvals": found,
            "most": _MOST,
            "of_run": run,
            "back": "inbox",
            "done": DONE.get(view.param("done"), ""),
        },
    )
