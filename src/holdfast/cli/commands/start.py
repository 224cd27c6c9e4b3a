"""`holdfast start`: start a run."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import click

from holdfast.cli import exits
from holdfast.cli.answers import call, current_settings
from holdfast.cli.framework import command, option
from holdfast.cli.inputs import (
    app_option,
    duration,
    filled,
    future_moment,
    given_options,
    read_json,
)
from holdfast.cli.render.console import decoded, write_json
from holdfast.cli.render.hints import command_of, with_database
from holdfast.cli.settings import Settings

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.definitions.app import App
    from holdfast.definitions.starts import StartOptions
    from holdfast.types import RunRecord


@command(
    "start",
    examples=(
        """holdfast start checkout '{"id": 7}' --key order-7""",
        "holdfast start checkout @order.json --app shop:app --wait",
        "jq .order mail.json | holdfast start checkout - --tag mail",
    ),
)
@click.argument("workflow")
@click.argument("input", required=False)
@app_option
@option("--key KEY", "Start once: the same key finds the same run.", callback=filled)
@option(
    "--if-ended",
    "If the run of the key has ended: return it (the default), start another, or refuse.",
    type=click.Choice(["return", "start", "refuse"]),
)
@option("--delay TIME", "Start it after this time: 90s, 1h30m, 7d.", type=duration)
@option(
    "--at MOMENT",
    "Start it at this moment: 2030-01-31T12:00, or 2h for two hours from now.",
    name="start_at",
    type=future_moment,
)
@option("--priority", "From 0 (first) to 4 (last).", type=click.IntRange(0, 4))
@option("--queue NAME", "Let the workers of this queue run it.")
@option("--workflow-version", "Start this version of it.", type=click.IntRange(1))
@option("--timeout TIME", "End the run if it takes longer than this.", type=duration)
@option("--retention TIME", "Keep the run for TIME after its end: 90d.", type=duration)
@option("--tag TAG...", "A label to find the run by; may be repeated.", name="tags")
@option(
    "--attribute NAME=VALUE...",
    "A number, true, false or a text to find the run by; may be repeated.",
    name="attributes",
)
@option("--wait", "Wait for its end: show what it does, and write its output.")
@option(
    "--wait-timeout TIME",
    "As --wait, but stop waiting after this time (exit code 5).",
    type=duration,
)
def start(
    workflow: str,
    input: str | None,
    app_reference: str | None,
    wait: bool,
    wait_timeout: float | None,
    **given: Any,
) -> None:
    """Start a run of WORKFLOW, and write its id.

    WORKFLOW is the name of a workflow or a flow, or app/name. The app is needed if several apps
    have one of this name, or if no worker has ever served it. INPUT is JSON, @FILE, or - for stdin;
    the default is null. With --app, an input that does not fit the declared type is refused;
    without it, the run is started and fails. With --wait, the exit code says how the run ended.
    """
    settings = current_settings()
    payload = read_json(input, "input")
    options = cast("StartOptions", given_options(given))
    app, value = _checked(app_reference, workflow, options.get("version"), payload)

    async def work(link: Link) -> int:
        handle = await link.client.start(workflow, value, **options)
        run = (await handle.get()).record
        if wait or wait_timeout is not None:
            return await _watch(settings, link, run, wait_timeout)
        _answer(settings, run, created=not handle.already_existed, start_at=options.get("start_at"))
        if not handle.already_existed and not settings.json:
            await _warn_if_not_taken(link, run)
        return exits.OK

    click.get_current_context().exit(call(work, app=app))


def _checked(
    app_reference: str | None, workflow: str, version: int | None, payload: str
) -> tuple[App | None, object]:
    """Return the app, and the input as the type that is declared for it."""
    from holdfast.cli.process.loading import AppReference

    if app_reference is None:
        return None, decoded(payload)
    app = AppReference.parse(app_reference).load()
    name = workflow.removeprefix(f"{app.name}/")
    known = app.latest(name) if version is None else app.find(name, version)
    return app, known.decode_input(payload)


def _answer(
    settings: Settings, run: RunRecord, *, created: bool, start_at: datetime | None
) -> None:
    from holdfast.cli.render.runs import run_object

    if settings.json:
        write_json({"created": created, "start_at": start_at, **run_object(run)})
        return
    click.echo(str(run.run_id))
    if not created:
        click.echo(f"it was started before with this key and is {run.state}", err=True)


async def _watch(settings: Settings, link: Link, run: RunRecord, timeout: float | None) -> int:
    from holdfast.cli.render.progress import report_end, watch_run

    if not settings.json:
        click.echo(f"run {run.run_id}", err=True)
        await _warn_if_not_taken(link, run)
    ended = await watch_run(link, run, timeout, quiet=settings.json)
    return report_end(settings, ended)


async def _warn_if_not_taken(link: Link, run: RunRecord) -> None:
    """Warn if no worker will run it now: because of a pause, or because no live worker serves it.

    Its name may be misspelled, or no worker was started.
    """
    from holdfast.client.naming import similar_names
    from holdfast.insight.actions import Action, resume_action
    from holdfast.insight.serving import live_workers, queues_of, serves_queue
    from holdfast.insight.why.explanation import pause_text
    from holdfast.insight.why.queued import unserved_text

    if run.status != "running":
        return
    now, queues = await link.store.now(), await queues_of(link.store, run)
    for pause in await link.store.list_pauses():
        named = queues if pause.scope == "queue" else (run.full_name,)
        if pause.name in named:
            command = command_of(resume_action(pause))
            text = f"{pause_text(pause, now)}: the run waits for `{command}`"
            click.echo(with_database(text), err=True)
    workers = live_workers(await link.store.list_workers(), now)
    for queue in queues:
        if any(serves_queue(each, run.handler, queue) for each in workers):
            continue
        if run.build is not None:
            text = f"{unserved_text(run)}: `holdfast worker MODULE:APP` of that build starts one"
            click.echo(with_database(f"run {run.run_id} waits: {text}"), err=True)
            continue
        similar = [
            name for name in await similar_names(link.store, run.full_name) if name != run.full_name
        ]
        meant = f" (did you mean {' or '.join(similar)}?)" if similar else ""
        text = (
            f"no live worker serves {run.handler} on queue {queue!r} of {link.database}{meant}"
            f"; `{command_of(Action('start_worker', name=queue))}` starts one"
        )
        click.echo(with_database(text), err=True)
