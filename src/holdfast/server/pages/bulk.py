"""Change many runs: first they are counted, then the number is typed, then it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from holdfast.client import Client
from holdfast.client.bulk import BulkOutcome
from holdfast.client.filters import RunFilters
from holdfast.client.naming import RunRef
from holdfast.server.api.bulk import LEVELS, check_level
from holdfast.server.pages.forms import decode
from holdfast.server.pages.runs import FILTERS, read_filters, read_search
from holdfast.server.pages.view import Page, Redirect, View
from holdfast.server.problems import Problem, problem_of
from holdfast.server.reading import bad_parameter
from holdfast.server.site import Site
from holdfast.values.ids import uuid7
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.server")

_COUNT_SECONDS: Final = 15.0
_MOST_CHOSEN: Final = 200  # runs that one form names
_KEPT: Final = 50  # jobs that have ended and can still be looked at
_DO: Final = tuple(each for each in LEVELS if each != "reschedule")  # no form has its fields
_FILTERS: Final = ("run", *FILTERS)

Progress = Callable[[BulkOutcome], None]


class Job:
    """A change to many runs that is under way in this process, or has ended."""

    def __init__(self, number: str, do: str, work: Callable[[Progress], Awaitable[BulkOutcome]]):
        self.number, self.do = number, do
        self.outcome = BulkOutcome()
        self.state, self.error = "running", ""
        self._work = work
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            self.outcome = await self._work(self._advance)
            self.state = "completed"
        except asyncio.CancelledError:
            self.state = "cancelled"
        except Exception as error:
            self.state, self.error = "failed", problem_of(error).detail

    def _advance(self, outcome: BulkOutcome) -> None:
        self.outcome = outcome

    def stop(self) -> None:
        """End it. What it changed stays changed; the same again continues it."""
        self.task.cancel()


def _jobs(_: Site) -> dict[str, Job]:
    return {}


async def bulk_page(view: View) -> Page:
    """Return what a change would change: a dry run."""
    do, where = _read(view, view.param("do"))
    chosen, filters = (where, RunFilters()) if isinstance(where, list) else ([], where)
    counted, complete = BulkOutcome(), True

    def advance(outcome: BulkOutcome) -> None:
        nonlocal counted
        counted = outcome

    try:
        async with asyncio.timeout(_COUNT_SECONDS):
            await _change(view.reader, do, where, {}, advance, dry_run=True)
    except TimeoutError:
        complete = False
    return Page(
        template="bulk.html",
        title="Chosen runs" if chosen else "All matching",
        place="/runs",
        values={
            "do": do,
            "counted": counted,
            "complete": complete,
            "chosen": chosen,
            "where": {name: value for name, value in filters.items() if name != "input_contains"},
            "inputs": filters.get("input_contains"),
            "query": view.request.url.query,
            "job": str(uuid7()),
        },
    )


async def start(view: View) -> Redirect:
    """Begin the change, if the number of runs was typed."""
    do, where = _read(view, view.form.get("do", ""))
    count, typed = view.form.get("count", ""), view.form.get("typed", "").strip()
    if typed.replace(",", "") != count:
        raise Problem(
            422, "invalid-input", f"type {count} to confirm: so many runs would be changed"
        )
    jobs, form = view.site.kept(_jobs), dict(view.form)
    number = form.get("job", "")
    if number not in jobs:
        principal, by = view.principal, view.principal.name
        payload = decode(form.get("payload", ""), "the payload")  # an error before anything is done

        async def work(progress: Progress) -> BulkOutcome:
            async with view.site.seen_by(principal) as site:  # the request is over
                given = form | {"_": payload, "by": by}
                return await _change(site.client, do, where, given, progress)

        while len(jobs) >= _KEPT:
            ended = next((each for each, job in jobs.items() if job.task.done()), None)
            if ended is None:
                raise Problem(503, "busy", f"{_KEPT} changes are under way: wait for one")
            del jobs[ended]
        jobs[number] = Job(number, do, work)
    return Redirect(f"/bulk/{number}?{_asked(view, do)}")


async def job_page(view: View) -> Page:
    """Return how far a change is, or where to continue it if this server cannot know."""
    job = view.site.kept(_jobs).get(_number(view))
    do = view.param("do")
    if job is None and do not in _DO:
        raise _unknown()
    return Page(
        template="job.html",
        title="All matching",
        place="/runs",
        parts={"job": "parts/job.html"},
        values={
            "job": job,
            "do": do if job is None else job.do,
            "query": _asked(view, do),
            "chosen": "run" in view.request.query_params,
        },
        seconds=0.5,
    )


async def stop(view: View) -> Redirect:
    """End a change that is under way."""
    job = _find(view)
    job.stop()
    await asyncio.wait([job.task])
    return Redirect(f"/bulk/{job.number}")


def _find(view: View) -> Job:
    job = view.site.kept(_jobs).get(_number(view))
    if job is None:
        raise _unknown()
    return job


def _number(view: View) -> str:
    return str(view.request.path_params["job"])


def _unknown() -> Problem:
    return Problem(404, "not-found", "this server does not know the change: begin it again")


def _asked(view: View, do: str) -> str:
    """Return the query that asks for the same change of the same runs.

    The page of a change has it, so that a reader whose server has gone can continue there.
    """
    given = [each for each in view.request.query_params.multi_items() if each[0] in _FILTERS]
    return urlencode([("do", do), *given])


def _read(view: View, do: str) -> tuple[str, RunFilters | list[RunRef]]:
    """Return what is to be done, and to which runs. Raises Problem 400 or 403."""
    if do not in _DO:
        raise Problem(400, "bad-parameter", f"do is one of {', '.join(_DO)}")
    check_level(view.principal, do)
    if "run" in view.request.query_params:
        return do, _read_chosen(view)
    for name, value in view.request.query_params.multi_items():
        if not value.strip():
            raise bad_parameter(name, "it is empty: leave it out, or say which runs are meant")
    direct, text = read_search(view)
    if direct is not None:
        raise Problem(400, "bad-parameter", f"{direct!r} names one run: open its page")
    return do, read_filters(view, text)


def _read_chosen(view: View) -> list[RunRef]:
    """Return the runs that were chosen in a list: `run` has an id, or several with commas.

    A form that chose none is refused: without a filter, all runs would be meant.
    """
    texts = [each for given in view.params("run") for each in given.split(",") if each.strip()]
    try:
        chosen = list(dict.fromkeys(UUID(each.strip()) for each in texts))
    except ValueError:
        raise Problem(400, "bad-parameter", "run is the id of a run") from None
    if not 0 < len(chosen) <= _MOST_CHOSEN:
        raise Problem(400, "bad-parameter", f"choose 1 to {_MOST_CHOSEN} runs of the list")
    return [*chosen]


async def _change(
    client: Client,
    do: str,
    where: RunFilters | list[RunRef],
    form: dict[str, object],
    progress: Progress,
    *,
    dry_run: bool = False,
) -> BulkOutcome:
    runs = client.runs
    reason = str(form.get("reason", "")).strip() or None
    by = str(form.get("by", "")) or None
    match do:
        case "retry":
            return await runs.retry_all(where, dry_run=dry_run, progress=progress)
        case "resume":
            return await runs.resume_all(where, by=by, dry_run=dry_run, progress=progress)
        case "signal":
            return await runs.signal_all(
                where,
                str(form.get("name") or "signal"),
                form.get("_"),
                signal_id=str(form.get("job") or "") or None,
                dry_run=dry_run,
                progress=progress,
            )
        case _:
            changes = {
                "cancel": runs.cancel_all,
                "pause": runs.pause_all,
                "terminate": runs.terminate_all,
            }
            return await changes[do](
                where, reason=reason, by=by, dry_run=dry_run, progress=progress
            )
