"""The list of runs: search, filters, pages, and what each run does now."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final
from uuid import UUID

import msgspec

from holdfast.client.filters import STATES, RunFilters
from holdfast.client.run import RunPage
from holdfast.errors import (
    AmbiguousWorkflow,
    ConfigurationError,
    DatabaseError,
    InvalidInput,
    UnknownWorkflow,
)
from holdfast.insight.spans import error_chain, error_text, read_json
from holdfast.insight.wording import ago, failed_times, queued_and_worked, shorten
from holdfast.server.pages.counts import count_states
from holdfast.server.pages.rendering import url_query
from holdfast.server.pages.rows import rows_of
from holdfast.server.pages.view import Page, Redirect, View
from holdfast.server.problems import Problem
from holdfast.server.reading import bad_parameter, read_inputs
from holdfast.types import ANY_END, ANY_UPDATE, RunRecord
from holdfast.values.attributes import read_attributes
from holdfast.values.durations import seconds
from holdfast.values.moments import to_datetime

_PAGE: Final = 50
_CHIPS: Final = ("stuck", "failed", *(each for each in STATES if each not in ("stuck", "failed")))
_MOST_ASKED: Final = 1_000  # open approvals that are read for a list
_NOTHING_ASKED: Final[Mapping[UUID, str]] = MappingProxyType({})
_NEWEST: Final = 1_000  # runs among which the end of an id is looked for
_END_OF_ID: Final = re.compile(r"[0-9a-f-]{4,36}", re.IGNORECASE)
_ID: Final = re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,28}", re.IGNORECASE)
_WORD: Final = re.compile(r'(?:"[^"]*"|\S)+')  # of a search
_ATTRIBUTE: Final = re.compile(r"[a-zA-Z0-9._-]+=.")
_QUOTED: Final = re.compile(r'"[^"]+"')
_MOST_NEW: Final = 50
FILTERS: Final = (
    "q",
    "state",
    "workflow",
    "queue",
    "tag",
    "where",
    "key",
    "build",
    "since",
    "parent",
)
"""The parameters of an address that say which runs are meant: each link and form keeps them all."""

_ONE: Final = frozenset({"q", "key", "build", "since", "parent"})  # the others may be repeated
_OWN: Final = ("ids", "live")  # what of a stream's query is not about the list, but its reader

DONE: Final = {
    "cancel": "The run was asked to end.",
    "pause": "The run is paused.",
    "resume": "The run continues.",
    "terminate": "The run was ended.",
    "retry": "This run continues the one that failed.",
    "fork": "This run was forked.",
    "signal": "The signal was sent.",
    "update": "The update was sent.",
    "start": "The run was started.",
    "decide": "The decision was sent.",
    "nothing": "Nothing was changed: it was so before.",
}


class Line(msgspec.Struct, frozen=True):
    """A run in the list, with what it does now in a few words."""

    run: RunRecord
    now: str
    queued: str
    took: str


class _Rows(msgspec.Struct, frozen=True):
    """The rows of a page, and how many runs of a stream's list are newer."""

    lines: list[Line]
    cursor: str | None = None
    searched: datetime | None = None
    fresh: int = 0


async def list_page(view: View) -> Page | Redirect:
    """Return the page of runs, or lead to the run that was searched for."""
    found, text = read_search(view)
    wrong, status, rows = "", 200, _Rows([])
    if found is not None:
        try:
            return await find(view, found)
        except Problem as problem:  # the page has the search, to be corrected
            wrong, status = problem.detail, problem.status
    filters, cursor = read_filters(view, text), view.param("cursor") or None
    shown, follows = _ids(view.param("ids")), "ids" in view.request.query_params
    if not follows:
        filters |= {"limit": _PAGE, "cursor": cursor}
    try:
        if follows:
            rows = await _read_shown(view, filters, shown)
        elif not wrong:
            rows = await _read_page(view, filters)
    except (ConfigurationError, UnknownWorkflow, AmbiguousWorkflow) as error:
        wrong = str(error)
    chosen_by = read_filters(view, text)
    chosen = {name: value for name, value in filters.items() if name != "input_contains"}
    ids = ",".join(each.run.run_id.hex for each in rows.lines)
    query = view.request.url.query
    here = view.request.url.path + "?" + (query + "&" if query else "")
    return Page(
        template="runs.html",
        title="Runs",
        place="/runs",
        status=status,
        parts={"rows": "parts/runs_rows.html", "fresh": "parts/runs_fresh.html"},
        values={
            "lines": rows.lines,
            "choosing": True,
            "cursor": rows.cursor,
            "first_page": cursor is None,
            "searched": rows.searched,
            "fresh": rows.fresh,
            "most_new": _MOST_NEW,
            "wrong": wrong,
            "states": _CHIPS,
            "counts": {} if follows else await count_states(view.site, chosen_by),
            "filters": chosen,
            "kept": kept_filters(view),
            "stream": "" if wrong or (cursor and not ids) else f"{here}ids={ids}&live=1",
        },
    )


def kept_filters(view: View) -> dict[str, str | list[str]]:
    """Return the filters of an address by name, for the links and forms of its page."""
    return {each: view.param(each) if each in _ONE else view.params(each) for each in FILTERS}


def _ids(text: str) -> list[UUID]:
    """Return the runs that a stream shows; none for the first reading of a page."""
    try:
        return [UUID(each) for each in text.split(",") if each]
    except ValueError:
        raise Problem(400, "bad-parameter", "ids are those of runs") from None


async def _read_page(view: View, filters: RunFilters) -> _Rows:
    page = await view.reader.runs.list(**filters)
    asked, now = await _asked(view, [each.record for each in page.runs]), await view.store.now()
    lines = [line(each.record, now, asked) for each in page.runs]
    return _Rows(lines, page.cursor, page.searched_until)


async def _read_shown(view: View, filters: RunFilters, shown: list[UUID]) -> _Rows:
    """Return the rows that are on the screen, as they are now, and how many are newer."""
    records = await rows_of(view.site).read(view.store.reads, shown[:_PAGE])
    asked, now = await _asked(view, records.values()), await view.store.now()
    lines = [line(records[each], now, asked) for each in shown if each in records]
    if view.param("cursor"):
        return _Rows(lines)
    return _Rows(lines, fresh=await _count_new(view, filters, list(records.values())))


async def _asked(view: View, runs: Iterable[RunRecord]) -> Mapping[UUID, str]:
    """Return what runs ask people to decide, by run: the oldest question of each."""
    if not any(_awaits_end(run) for run in runs):
        return {}
    found = await view.reader.approvals.list(limit=_MOST_ASKED)
    return {each.run_id: each.title for each in reversed(found)}


def _awaits_end(run: RunRecord) -> bool:
    return run.state == "waiting" and run.wait is not None and ANY_END in run.wait.awaiting


def line(run: RunRecord, now: int, asked: Mapping[UUID, str] = _NOTHING_ASKED) -> Line:
    """Return a run for the list; `asked` says what runs ask people to decide."""
    return Line(run, what_now(run, now, asked.get(run.run_id, "")), *queued_and_worked(run, now))


def what_now(run: RunRecord, now: int, question: str = "") -> str:
    """Return in a few words what the row of a run says; its page says why."""
    wait = run.wait
    if wait is None:
        causes = list(error_chain(read_json(run.error)))
        return shorten(causes[-1], 120) if causes else ""
    if wait.stuck is not None:
        return shorten(wait.stuck, 120)
    if run.last_failure is not None and run.started_at is None:
        return _tried_again(run, now)
    if run.state == "waiting":
        names = [each for each in wait.awaiting if not each.startswith(":")]
        parts = [f"signal {each!r}" for each in names[:3] if not each.startswith("update:")]
        parts += ["a call"] if ANY_UPDATE in names else []
        parts += [
            f"update {each[7:]!r}" for each in names[:3] if each[7:] and each.startswith("update:")
        ]
        if _awaits_end(run):
            text = f"a decision: {shorten(question, 100)}" if question else "the end of a call"
            parts.append(text)
        if wait.visible_at is not None and wait.visible_at > now:
            parts.append(f"until {to_datetime(wait.visible_at):%Y-%m-%d %H:%M:%S} UTC")
        return ", ".join(parts)
    return f"on {wait.worker}" if wait.worker is not None else ""


def _tried_again(run: RunRecord, now: int) -> str:
    """Say how often a run has failed that waits for its next attempt, and why."""
    last, at = run.last_failure, run.due_at or now
    error = "" if last is None else shorten(error_text(read_json(last.error)), 120)
    return f"{failed_times(run)}, tried again {ago(at, now)}: {error}"


def read_search(view: View) -> tuple[str | None, dict[str, list[str]]]:
    """Return a run that the search names, and the filters among its words.

    `state:failed`, `tag:vip`, `queue:mail`, `workflow:shop/buy`, `build:a81f`, `customer=acme` (an
    attribute) and `input.customer=7` are filters; a word that is a state is one too. What has
    spaces is quoted: `tag:"big order"`. Any other word is looked for by `find`.
    """
    filters: dict[str, list[str]] = {}
    direct: str | None = None
    for word in _WORD.findall(view.param("q")):
        if (filter_ := _filter_of(word)) is not None:
            filters.setdefault(filter_[0], []).append(filter_[1])
        elif direct is None:
            direct = _unquoted(word)
    return direct, filters


def _filter_of(word: str) -> tuple[str, str] | None:
    """Return the filter that a word of a search is, with its value; None for any other word."""
    name, colon, value = word.partition(":")
    value = _unquoted(value)
    if word in STATES:
        return "state", word
    if colon and value and name in ("state", "tag", "queue", "workflow", "key", "build"):
        return name, value
    if word.startswith("input.") and "=" in word:
        return "input", word
    return ("where", word) if "=" in word and _ATTRIBUTE.match(word) else None


def _unquoted(text: str) -> str:
    return text[1:-1] if _QUOTED.fullmatch(text) else text


def read_filters(view: View, text: dict[str, list[str]]) -> RunFilters:
    """Return the filters of the query and of the search text. Raises Problem 400."""
    filters: RunFilters = {}
    states = [*view.params("state"), *text.get("state", [])]
    if states:
        filters["states"] = states
    if names := [*view.params("workflow"), *text.get("workflow", [])]:
        filters["names"] = names
    if queues := [*view.params("queue"), *text.get("queue", [])]:
        filters["queues"] = queues
    if tags := [*view.params("tag"), *text.get("tag", [])]:
        filters["tags"] = tags
    if where := [*view.params("where"), *text.get("where", [])]:
        filters["where"] = read_attributes(where)
    if key := _one(view, "key", text):
        filters["key"] = key
    if build := _one(view, "build", text):
        filters["build"] = build
    if inputs := text.get("input"):
        pairs = [word.partition("=") for word in inputs]
        filters["input_contains"] = read_inputs((name, value) for name, _, value in pairs)
    if since := view.param("since"):
        filters["since"] = _moment(view, since)
    if parent := view.param("parent"):
        try:
            filters["parent"] = UUID(parent)
        except ValueError:
            raise Problem(400, "bad-parameter", "parent is the id of a run") from None
    return filters


def _one(view: View, name: str, text: Mapping[str, list[str]]) -> str:
    """Return a filter that has one value, "" if it is not given. Raises Problem 400."""
    found = {each for each in (view.param(name), *text.get(name, [])) if each}
    if len(found) > 1:
        raise bad_parameter(name, "it is given twice")
    return next(iter(found), "")


def _moment(view: View, text: str) -> datetime:
    try:
        now = datetime.now().astimezone()
        return datetime.fromtimestamp(now.timestamp() - seconds(text), now.tzinfo)
    except (ConfigurationError, ValueError, OverflowError, OSError):
        pass
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise Problem(400, "bad-parameter", "since is a moment, or a length such as 2h") from None


async def find(view: View, text: str) -> Redirect:
    """Lead to what a word of the search means, as a list shows it.

    That is, whichever is there first: `workflow/key`, an id or its beginning, a key, a workflow, a
    tag, the last digits of an id. A run that is the only one is opened, several are a list. Raises
    Problem 404 for what is none of these.
    """
    if (
        run_id := await _by_name_and_key(view, text) or await _by_beginning(view, text)
    ) is not None:
        return Redirect(f"/runs/{run_id}")
    by_key: RunFilters = {"key": text, "limit": 2}
    by_workflow: RunFilters = {"names": text, "limit": 2}
    by_tag: RunFilters = {"tags": text, "limit": 2}
    ways: dict[str, RunFilters] = {"key": by_key, "workflow": by_workflow, "tag": by_tag}
    for name, filters in ways.items():
        try:
            page = await view.reader.runs.list(**filters)
        except (UnknownWorkflow, AmbiguousWorkflow, ConfigurationError, InvalidInput) as error:
            if isinstance(error, AmbiguousWorkflow):
                raise
            continue
        words = _WORD.findall(view.param("q"))
        alone = sum(_filter_of(word) is None for word in words) == 1  # else the others narrow it
        if name == "key" and alone and len(page.runs) == 1 and page.cursor is None:
            return Redirect(f"/runs/{page.runs[0].run_id}")
        if page.runs or (page.searched_until is not None and name == "tag"):
            return _searched(view, name, text)
    if _END_OF_ID.fullmatch(text):
        newest = await view.reader.runs.list(limit=_NEWEST)
        ends = [each.run_id for each in newest.runs if str(each.run_id).endswith(text.lower())]
        if len(ends) == 1:
            return Redirect(f"/runs/{ends[0]}")
        if ends:
            raise Problem(404, "run-not-found", f"several runs have an id that ends with {text!r}")
    if "/" in text:
        raise Problem(404, "run-not-found", f"no run was started as {text!r} (workflow/key)")
    raise Problem(
        404,
        "run-not-found",
        f"no run has {text!r} as its id, its beginning or end, its key, workflow or tag; a search "
        "takes states, too, workflow/key, queue:mail and input.customer=7",
    )


def _searched(view: View, name: str, text: str) -> Redirect:
    """Return the list with a word of the search made a filter."""
    filter_ = f'{name}:"{text}"' if re.search(r"\s", text) else f"{name}:{text}"
    words = [
        filter_ if word.strip('"') == text else word for word in _WORD.findall(view.param("q"))
    ]
    return Redirect(f"/runs{url_query(kept_filters(view) | {'q': ' '.join(words)})}")


async def _by_name_and_key(view: View, text: str) -> UUID | None:
    name, slash, key = text.rpartition("/")
    first, _, rest = text.partition("/")
    for pair in ((name, key), (first, rest)) if slash else ():
        try:
            return (await view.reader.runs.get(pair)).run_id
        except (Problem, DatabaseError):
            raise
        except Exception:
            continue
    return None


async def _by_beginning(view: View, text: str) -> UUID | None:
    found = await view.reader.runs.find_ids(text, 2) if _ID.fullmatch(text) else []
    if len(found) > 1:
        raise Problem(404, "run-not-found", f"several runs have an id that begins with {text!r}")
    return found[0] if found else None


async def _count_new(view: View, filters: RunFilters, shown: list[RunRecord]) -> int:
    """Return how many runs of the list are newer than those on the screen."""
    asked = [pair for pair in view.request.query_params.multi_items() if pair[0] not in _OWN]
    filters |= {"limit": _MOST_NEW}

    async def ask() -> RunPage:
        return await view.reader.runs.list(**filters)

    page = await rows_of(view.site).page(tuple(sorted(asked)), ask)
    known = {each.run_id for each in shown}
    newest = max((each.created_at for each in shown), default=0)
    return sum(each.run_id not in known and each.record.created_at >= newest for each in page.runs)
