"""The page of one run: what it does and why, what happened, and what can be done about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Final
from uuid import UUID

import msgspec

from holdfast.errors import RunNotFound
from holdfast.insight.approvals import OpenApproval
from holdfast.insight.folding import MOST_SPANS, Fold
from holdfast.insight.shapes import shown_details
from holdfast.insight.spans import Span, error_chain, read_json, traceback_text
from holdfast.insight.traces import find_trace
from holdfast.insight.tree import read_children
from holdfast.insight.why import Explanation, explain
from holdfast.insight.why.surroundings import look_around
from holdfast.insight.wording import queued_and_worked
from holdfast.server.api.explaining import whole
from holdfast.server.log_pages import read_log_page
from holdfast.server.pages.graph import draw_flow
from holdfast.server.pages.run_streams import lines_tab, streams_tab, written_tabs
from holdfast.server.pages.runs import DONE
from holdfast.server.pages.strips import WINDOW, Scale, make_strips
from holdfast.server.pages.view import Download, Fragment, Page, View
from holdfast.server.problems import Problem
from holdfast.server.run_logs import RunLog, logs_of
from holdfast.types import ClippedEvent

_TABS: Final = ("timeline", "log", "code", "lines", "streams", "data", "children")
_EVENTS: Final = 200  # of a page of the log
_CLIP: Final = 2048  # characters of an event's details
_WHOLE: Final = 2**30
_SECONDS: Final = 0.5


async def run_page(view: View) -> Page:
    """Return the page of a run."""
    run_id = view.run_id
    log = await logs_of(view.site).read(run_id)
    tab = view.param("tab") or "timeline"
    if tab not in _TABS:
        raise Problem(404, "not-found", f"a run has no page {tab!r}")
    now = await view.store.now()
    run = log.run
    values: dict[str, object] = {
        "run": run,
        "log": log,
        "tab": tab,
        "took": queued_and_worked(run, now),
        "why": await _why(view, log),
        "approvals": await _approvals(view, log),
        "new_id": form_id(log),
        "trace": find_trace(run),
        "done": DONE.get(view.param("done"), ""),
        "children": sum(span.kind == "child" for span in log.spans),
        "origin": next((span.origin_run_id for span in log.spans if span.kind == "fork"), ""),
        "written": await written_tabs(view, log, tab),
        "has_code": _has_code(view, log),
    }
    values |= await _tab(view, tab, log, now)
    parts = {
        "head": "parts/run_head.html",
        "why": "parts/run_why.html",
        "tabs": "parts/run_tabs.html",
        "body": f"parts/run_{tab}.html",
    }
    title = f"{run.key or str(run_id)[-12:]} {run.state}"
    return Page(
        template="run.html",
        title=title,
        values=values,
        parts=parts,
        place="/runs",
        seconds=_SECONDS,
    )


def form_id(log: RunLog) -> str:
    """Return an id for what a form sends: another one when the log has grown.

    So a form that is sent twice does its work once.
    """
    told = f"{log.run.run_id}/{len(log.events)}"
    return blake2b(told.encode(), digest_size=12).hexdigest()


async def _why(view: View, log: RunLog) -> Explanation:
    around = await look_around(view.store, log.run, log.spans, log.events)
    return explain(log.run, log.spans, around)


async def _approvals(view: View, log: RunLog) -> list[OpenApproval]:
    asks = any(span.kind == "approval" and span.outcome == "open" for span in log.spans)
    return await view.reader.approvals.list(log.run.run_id) if asks else []


async def _tab(view: View, tab: str, log: RunLog, now: int) -> Mapping[str, object]:
    if tab == "timeline":
        return await _timeline(view, log, now)
    if tab == "log":
        after = view.number("after", 0, 10**9)
        shown = await read_log_page(view.site, log.run.run_id, after, _EVENTS, _CLIP)
        return {
            "events": [(each.idx, each.event, clip(each)) for each in shown.entries],
            "after": after,
            "next": shown.next,
            "before": max(0, after - _EVENTS),
        }
    if tab == "streams":
        return await streams_tab(view, log)
    if tab == "lines":
        return await lines_tab(view, log)
    if tab == "code":
        if not _has_code(view, log):
            raise Problem(404, "not-found", "the code of the run is not at hand: see holdfast dev")
        return {"replayed": await view.site.catalogue.replay(log.run.run_id, len(log.events))}
    if tab == "children":
        return {"tree": await read_children(view.store, log.spans)}
    error = read_json(log.run.error)
    try:
        found = await view.reader.runs.values(log.run.run_id)
    except RunNotFound:
        found = {}
    return {
        "values": {name: msgspec.json.encode(value).decode() for name, value in found.items()},
        "errors": list(error_chain(error)),
        "traceback": traceback_text(error),
    }


def _has_code(view: View, log: RunLog) -> bool:
    return view.site.catalogue.replays and log.run.kind == "workflow"


def clip(entry: ClippedEvent) -> str:
    """Return details of an event, which say so where they were cut."""
    text, cut = shown_details(entry.event), entry.event.details
    if text is None or cut is None or text == "null":
        return ""
    return text if len(cut) < _CLIP or len(cut.encode()) == entry.size else text + " …"


async def _timeline(view: View, log: RunLog, now: int) -> Mapping[str, object]:
    scale = _scale(log, now)
    graph = None
    if log.run.kind == "flow":
        graph = await draw_flow(view.store, log.run)
    only = view.param("only")
    lines = _only(log, only)
    return {
        "strips": make_strips(lines, scale),
        "is_bare": not only and all(span.kind in ("delay", "queue") for span in log.spans),
        "of": "",
        "only": only,
        "counts": _counts(log) if len(log.spans) > MOST_SPANS else {},
        "windows": list(range(WINDOW, len(lines), WINDOW)),
        "scale": scale,
        "window": WINDOW,
        "graph": graph,
    }


_ONLY: Final[Mapping[str, Callable[[Span], bool]]] = {
    "failed": lambda span: span.outcome == "failed" or bool(span.failures),
    "open": lambda span: span.outcome == "open",
    "calls": lambda span: span.kind in ("step", "activity", "child"),
}
"""What of a long timeline can be shown alone."""


def _only(log: RunLog, only: str) -> Sequence[Span | Fold]:
    """Return the lines of a timeline that are asked for. Raises Problem 400."""
    if not only:
        return log.lines
    if only not in _ONLY:
        raise Problem(400, "bad-parameter", f"only is one of {', '.join(_ONLY)}")
    return [span for span in log.spans if _ONLY[only](span)]


def _counts(log: RunLog) -> Mapping[str, int]:
    return {name: sum(map(fits, log.spans)) for name, fits in _ONLY.items()}


def _scale(log: RunLog, now: int) -> Scale:
    ends = [span.ended_at for span in log.spans if span.ended_at is not None]
    until = log.run.completed_at or max([now, *ends])
    return Scale(log.spans, log.run.created_at, until)


async def timeline_window(view: View) -> Fragment:
    """Return rows of a long timeline: those from a place on, of a folded row if one is named."""
    log = await logs_of(view.site).read(view.run_id)
    first = view.number("from", 0, 10**9)
    lines = _only(log, view.param("only"))
    if fold := view.param("fold"):
        index = view.number("fold", 0, 10**9)
        found = lines[index] if index < len(lines) else None
        if not isinstance(found, Fold):
            raise Problem(404, "not-found", f"the timeline has no folded row {fold}")
        lines = list(found.spans)
    strips = make_strips(lines, _scale(log, await view.store.now()), first)
    of = f"{fold}-" if fold else ""  # a row of a fold has another id than one of the timeline
    shown = {"strips": strips, "of": of, "run": log.run, "window": WINDOW}
    return Fragment("parts/strips.html", shown)


async def download(view: View) -> Download:
    """Return a payload of a run whole: its input, output or error, or an event's details."""
    run = (await view.reader.runs.get(view.run_id)).record
    what = str(view.request.path_params["what"])
    if what in ("input", "output", "error"):
        text: str | None = getattr(run, what)
    elif what.isascii() and what.isdigit() and len(what) < 10:
        found = (await read_log_page(view.site, run.run_id, int(what), 1, _WHOLE)).entries
        text = shown_details(found[0].event) if found and found[0].idx == int(what) else None
    else:
        text = None
    if text is None:
        raise Problem(404, "not-found", f"the run has no {what}")
    return Download(f"{run.run_id}-{what}.json", whole(text))


def parse_uuid(text: str) -> UUID:
    """Return an id of a form. Raises Problem 400."""
    try:
        return UUID(text)
    except ValueError:
        raise Problem(400, "bad-parameter", f"{text!r} is not an id") from None
