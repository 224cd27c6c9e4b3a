"""What forms do to one run: each is one call of the client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, cast

from holdfast.client.forking import ForkOptions
from holdfast.errors import RunEnded
from holdfast.insight.approvals import OpenApproval
from holdfast.insight.spans import read_json
from holdfast.payloads.labels import is_unread
from holdfast.server.access import Level
from holdfast.server.pages.forms import check_filled, decode, read_value
from holdfast.server.pages.rendering import MOST_SHOWN
from holdfast.server.pages.run import parse_uuid
from holdfast.server.pages.view import Page, Redirect, View
from holdfast.server.problems import Problem
from holdfast.server.run_logs import logs_of
from holdfast.types import RunRecord
from holdfast.values.ids import uuid7

Do = Callable[[View], Awaitable[Redirect]]
_STEPS: Final = 500  # that a form offers


def _back(view: View, done: str, run: object | None = None) -> Redirect:
    return Redirect(f"/runs/{run or view.run_id}?done={done}")


async def _ended(view: View) -> RunEnded:
    """Return the error that says how the run had ended: the page that asked was old."""
    return RunEnded(view.run_id, (await view.reader.runs.get(view.run_id)).status)


async def cancel(view: View) -> Redirect:
    """Ask the run to end."""
    if not await view.client.runs.cancel(view.run_id, view.text("reason"), by=view.principal.name):
        raise await _ended(view)
    return _back(view, "cancel")


async def terminate(view: View) -> Redirect:
    """End the run at once."""
    if not await view.client.runs.terminate(
        view.run_id, view.text("reason"), by=view.principal.name
    ):
        raise await _ended(view)
    return _back(view, "terminate")


async def pause(view: View) -> Redirect:
    """Pause the run."""
    changed = await view.client.runs.pause(view.run_id, view.text("reason"), by=view.principal.name)
    return _back(view, "pause" if changed else "nothing")


async def resume(view: View) -> Redirect:
    """Resume the run."""
    changed = await view.client.runs.resume(view.run_id, by=view.principal.name)
    return _back(view, "resume" if changed else "nothing")


async def retry(view: View) -> Redirect:
    """Start the run that continues this one, and lead to it."""
    failed_steps = view.form.get("failed_steps") == "yes"
    handle = await view.client.runs.retry(view.run_id, failed_steps=failed_steps)
    return _back(view, "retry", handle.run_id)


async def signal(view: View) -> Redirect:
    """Send the run a signal. The id of the form makes it one signal, however often it is sent."""
    payload = decode(view.form.get("payload", ""), "the payload")
    name = view.form.get("name", "").strip()
    handle = view.client.handle(view.run_id)
    delivered = await handle.signal(name, payload, view.form.get("id") or None)
    return _back(view, "signal" if delivered else "nothing")


async def update(view: View) -> Redirect:
    """Send the run an update, and wait a little for its answer."""
    payload = decode(view.form.get("payload", ""), "the payload")
    name = view.form.get("name", "").strip()
    handle = view.client.handle(view.run_id)
    await handle.update(name, payload, timeout=10, update_id=view.form.get("id") or None)
    return _back(view, "update")


async def decide(view: View) -> Redirect:
    """Approve or reject what the run asks for."""
    key, approved = view.form.get("key", ""), view.form.get("approved")
    if approved not in ("yes", "no"):
        raise Problem(400, "bad-form", "approved is yes or no")
    found = await view.reader.approvals.list(view.run_id, limit=1_000)
    approval = next((each for each in found if each.key == key), None)
    await view.client.approvals.decide(
        view.run_id,
        key,
        approved == "yes",
        by=view.principal.name,
        feedback=view.text("feedback"),
        values=None if approval is None else _values(view, approval),
        decision_id=view.form.get("id") or None,
    )
    if view.form.get("back") == "inbox":
        return Redirect("/approvals?done=decide")
    return _back(view, "decide")


def _values(view: View, approval: OpenApproval) -> dict[str, object] | None:
    """Return what was filled in, as the types that the form's fields have."""
    check_filled((each.name for each in approval.fields), view.form)
    given: dict[str, object] = {}
    for each in approval.fields:
        text = view.form.get(f"f.{each.name}", "")
        if each.type == "text":
            if text or each.required:
                given[each.name] = text
        elif text.strip():
            given[each.name] = read_value(text, each.type, each.label or each.name)
    return given or None


_CALL: Final = ("id", "name", "payload")
_DECISION: Final = ("id", "key", "approved", "feedback", "back", "f.NAME")

DO: Final[dict[str, tuple[Level, Do, tuple[str, ...]]]] = {
    "cancel": ("write", cancel, ("reason",)),
    "pause": ("write", pause, ("reason",)),
    "resume": ("write", resume, ()),
    "retry": ("write", retry, ("failed_steps",)),
    "signal": ("write", signal, _CALL),
    "update": ("write", update, _CALL),
    "decide": ("write", decide, _DECISION),
    "terminate": ("admin", terminate, ("reason",)),
}


async def fork_page(view: View) -> Page:
    """Return the form of a fork: where it begins, and what is different in it."""
    log = await logs_of(view.site).read(view.run_id)
    keys = [
        span.key or span.label
        for span in log.spans
        if span.kind in ("step", "activity", "child")  # a timer is not a step
    ]
    return Page(
        template="fork.html",
        title="Fork",
        place="/runs",
        values={
            "run": log.run,
            "keys": list(dict.fromkeys(keys))[:_STEPS],
            "step": view.param("step"),
            "index": view.param("index"),
            **await _offered_input(view, log.run),
            "new_run_id": uuid7(),
            "most": len(log.events),
        },
    )


async def _offered_input(view: View, run: RunRecord) -> dict[str, str]:
    """Return the input that the form begins with, of the run or of a fork of it that is stuck.

    A mark must not become an input: then the form has none, and says why, and what it is then.
    """
    stays = "it stays as it is"
    if other := view.param("input_of"):
        run, stays = (await view.reader.runs.get(parse_uuid(other))).record, "it is that of the run"
    text, why = run.input or "", ""
    if not view.principal.payloads:
        why = "hidden from you"
    elif is_unread(text):
        why = "it cannot be read here"
    elif len(text) > MOST_SHOWN:
        why = "too large to be shown"
    return {"input": "" if why else text, "no_input": why and f"{why}: left empty, {stays}"}


async def fork(view: View) -> Redirect:
    """Fork the run. The new run's id is in the form: sent twice, it makes one run."""
    options: ForkOptions = {"run_id": parse_uuid(view.form.get("run_id", ""))}
    if step := view.form.get("step", ""):
        options["step"] = step
    elif index := view.text("index"):
        if not index.isascii() or not index.isdigit() or len(index) > 9:
            raise Problem(422, "invalid-input", "the number of entries is a whole number")
        options["index"] = int(index)
    run = (await view.reader.runs.get(view.run_id)).record
    text = view.form.get("input", "")
    if text.strip():
        value = decode(text, "the input")
        if run.input is None or value != read_json(run.input):
            options["input"] = value
            if run.kind != "flow" and not options.keys() & {"step", "index"}:
                options["index"] = 1  # calls that were made with the old input would not fit
    results = decode(view.form.get("results", ""), "the results")
    if results is not None:
        if not isinstance(results, dict):
            raise Problem(422, "invalid-input", "results are an object: results by key")
        options["results"] = cast("dict[str, object]", results)
    handle = await view.client.runs.fork(view.run_id, **options)
    return _back(view, "fork", handle.run_id)
