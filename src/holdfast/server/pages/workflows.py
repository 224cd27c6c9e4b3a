"""Workflows and flows: who serves them, and the form that starts a run."""

from __future__ import annotations

from holdfast.definitions.starts import StartOptions
from holdfast.errors import HoldfastError
from holdfast.insight.serving import Served, read_served
from holdfast.server.catalogue import Entry, find_entries
from holdfast.server.pages.charts import SPANS, read_charts, read_stats
from holdfast.server.pages.forms import (
    check_filled,
    decode,
    example,
    read_fields,
    read_values,
    refill,
)
from holdfast.server.pages.run import parse_uuid
from holdfast.server.pages.runs import line
from holdfast.server.pages.sparks import make_sparks
from holdfast.server.pages.view import Page, Redirect, View
from holdfast.server.problems import Problem, problem_of
from holdfast.values.ids import uuid7


async def workflows_page(view: View) -> Page:
    """Return the workflows that a worker has or had, or that a pause or a task names."""
    served = {each.name: each for each in await read_served(view.store, "workflow")}
    former = [
        f"{each.app}/{name}" for each in await view.store.list_apps() for name in each.workflows
    ]
    names = sorted({*served, *former})
    return Page(
        template="workflows.html",
        title="Workflows",
        place="/workflows",
        parts={"all": "parts/workflows.html"},
        values={
            "served": [(name, served.get(name)) for name in names],
            "sparks": make_sparks(await read_stats(view)),
        },
    )


async def workflow_page(view: View) -> Page:
    """Return one workflow with its newest runs and the form that starts one."""
    return await _form(view, _name(view.param("name")))


async def _form(view: View, name: str, problem: Problem | None = None) -> Page:
    found = [each for each in await read_served(view.store, "workflow") if each.name == name]
    served: Served | None = found[0] if found else None
    now = await view.store.now()
    newest = await view.reader.runs.list(names=name, limit=10) if await _known(view, name) else None
    entry = await _entry(view, name)
    schema = None if entry is None else entry.schema
    charts, load = await read_charts(view, name)
    return Page(
        template="workflow.html",
        title=name,
        place="/workflows",
        parts={"charts": "parts/charts.html"},
        seconds=10.0,
        status=200 if problem is None else problem.status,
        values={
            "name": name,
            "served": served,
            "charts": charts,
            "load": load,
            "charts_of": name,
            "spans": SPANS,
            "about": "" if entry is None else entry.about,
            "fields": refill(read_fields(schema), view.form),
            "input": view.form.get("input", example(schema)),
            "form": view.form,
            "problem": problem,
            "new_run_id": view.form.get("run_id", "") or uuid7(),
            "lines": [] if newest is None else [line(each.record, now) for each in newest.runs],
            "searched": None,
            "kept": {"workflow": name},
        },
    )


async def start(view: View) -> Redirect | Page:
    """Start a run. The form has the run's id: sent twice, it starts one.

    If a value does not fit, the form is shown again with what was filled in.
    """
    try:
        return await _start(view)
    except (Problem, HoldfastError) as error:
        problem = problem_of(error)
        if problem.status != 422:
            raise
        return await _form(view, _name(view.form.get("name", "")), problem)


async def _start(view: View) -> Redirect:
    name = _name(view.form.get("name", ""))
    entry = await _entry(view, name)
    fields = read_fields(None if entry is None else entry.schema)
    check_filled((each.name for each in fields or ()), view.form)
    if fields is None or "input" in view.form:
        value = decode(view.form.get("input", ""), "the input")
    else:
        value = read_values(fields, view.form)
    if entry is not None and view.site.app is None:  # else the client knows the type itself
        entry.check(name, value)
    options = _options(view)
    if (version := await _version(view, name)) is not None:
        options["version"] = version
    handle = await view.client.start(name, value, **options)
    return Redirect(f"/runs/{handle.run_id}?done=start")


async def pause(view: View) -> Redirect:
    """Pause a workflow: no worker continues its runs."""
    await view.client.workflows.pause(_name(view.form.get("name", "")), view.text("reason"))
    return Redirect("/workflows")


async def resume(view: View) -> Redirect:
    """Let a paused workflow continue."""
    await view.client.workflows.resume(_name(view.form.get("name", "")))
    return Redirect("/workflows")


def _options(view: View) -> StartOptions:
    options: StartOptions = {}
    if key := view.text("key"):
        options["key"] = key
    else:
        options["run_id"] = parse_uuid(view.form.get("run_id", ""))
    if queue := view.text("queue"):
        options["queue"] = queue
    if delay := view.text("delay"):
        options["delay"] = delay
    return options


def _name(text: str) -> str:
    if not text.strip():
        raise Problem(400, "bad-parameter", "name a workflow")
    return text.strip()


async def _version(view: View, name: str) -> int | None:
    """Return the newest version that live workers have, if this server does not have the code."""
    app, _, _ = name.rpartition("/")
    if view.site.app is not None and app in ("", view.site.app.name):
        return None
    served = await read_served(view.store, "workflow")
    return (
        max((max(each.versions, default=0) for each in served if each.name == name), default=0)
        or None
    )


async def _entry(view: View, name: str) -> Entry | None:
    return (await find_entries(view.site.catalogue, view.store, [name])).get(name)


async def _known(view: View, name: str) -> bool:
    return any(
        name == f"{each.app}/{one}"
        for each in await view.store.list_apps()
        for one in each.workflows
    ) or any(each.name == name for each in await read_served(view.store, "workflow"))
