"""`holdfast runs cancel`, `pause`, `retry`, `fork`, `set-tags`: commands that change runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import click

from holdfast.cli.answers import Answer, answer
from holdfast.cli.commands.bulk import Act, Change, ChangeAll, act, change_runs, run_options
from holdfast.cli.finding import find_run
from holdfast.cli.framework import command, option
from holdfast.cli.inputs import (
    app_option,
    attribute_values,
    duration,
    filled,
    future_moment,
    named_values,
    read_json,
)
from holdfast.cli.render.console import decoded

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.client import Client
    from holdfast.client.forking import ForkOptions
    from holdfast.types import RetryPlan


_reason = option("--reason TEXT", "Why; recorded in the log.")


@command(
    "cancel",
    examples=(
        'holdfast runs cancel checkout/order-7 --reason "the customer called"',
        "holdfast runs cancel --workflow checkout --tag trial --dry-run",
    ),
)
@run_options
@_reason
def cancel(reason: str | None, **chosen: Any) -> None:
    """Ask runs to end: their code may clean up first.

    Name the runs, or give filters. Exit code 1 if a named run had ended before.
    """

    change_runs(
        "cancel", "asked to end", "cancel requested", "it had ended before", chosen, reason=reason
    )


@command(
    "terminate",
    examples=(
        'holdfast runs terminate 3f9a --reason "started by mistake"',
        "holdfast runs terminate --state stuck --since 2h",
    ),
)
@run_options
@_reason
def terminate(reason: str | None, **chosen: Any) -> None:
    """End runs at once: their code does not clean up.

    Name the runs, or give filters. Exit code 1 if a named run had ended before.
    """

    change_runs(
        "terminate", "terminated", "terminated", "it had ended before", chosen, reason=reason
    )


@command(
    "pause",
    examples=(
        'holdfast runs pause checkout/order-7 --reason "wrong address"',
        "holdfast runs pause --workflow checkout --state waiting",
    ),
)
@run_options
@_reason
def pause(reason: str | None, **chosen: Any) -> None:
    """Stop runs until they are resumed.

    Name the runs, or give filters. Steps that run now end and are recorded. Runs that are started
    later are not paused: see `holdfast workflows pause` and `holdfast queues pause`. Exit code 1
    if a named run was paused before, or has ended.
    """

    words = ("paused", "paused", "it was paused before")
    change_runs("pause", *words, chosen, reason=reason)


@command(
    "resume",
    examples=(
        "holdfast runs resume checkout/order-7",
        "holdfast runs resume --workflow checkout --state stuck",
    ),
)
@run_options
def resume(**chosen: Any) -> None:
    """Let paused runs continue, and try stuck runs again at once.

    Name the runs, or give filters. A stuck run is tried again by itself too, after pauses that
    grow up to 5 minutes. Exit code 1 if a named run was neither paused nor stuck.
    """

    words = ("resumed", "resumed", "it was neither paused nor stuck")
    change_runs("resume", *words, chosen)


@command(
    "retry",
    examples=(
        "holdfast runs retry checkout/order-7",
        "holdfast runs retry --workflow checkout --since 24h --dry-run",
        "holdfast runs retry checkout/order-7 --failed-steps --dry-run",
        "holdfast runs retry analyze/site-7 --from-step sentiment",
    ),
)
@run_options
@option(
    "--from-step NAME",
    "Of named runs of a flow: run this step and all steps after it again.",
    callback=filled,
)
@option(
    "--failed-steps",
    "Of named runs: repeat all calls that failed, also those whose failures the code handled.",
)
def retry(
    references: tuple[str, ...], from_step: str | None, failed_steps: bool, **chosen: Any
) -> None:
    """Start new runs that continue where others failed.

    Name the runs, or give filters, which then find runs that failed or timed out, but no children:
    the retry of a parent starts those again, or knows of their failures. With --parent, or named,
    children are retried, too.

    Everything that the failed run had completed is kept, but not what its code called because of
    the failure; with --dry-run and a named run, both are named. A run is retried once; if the
    retry fails too, retry that. Exit code 1 if a named run was retried before, or cannot be
    retried.

    A call that is made again has another idempotency key, because the run's id is in it. Where an
    effect must not happen twice, use a key of the business, such as the order's id.

    The run of a flow repeats the steps that have not completed, and of maps the elements without a
    result. With --from-step it repeats more, also if it has completed; with --failed-steps also
    steps that were skipped after their last attempt, and elements that their map tolerated.
    """
    if from_step is not None and not references:
        raise click.UsageError("--from-step is for runs that are named: RUN...")
    if failed_steps and not references:
        raise click.UsageError("--failed-steps is for runs that are named: RUN...")

    async def one(client: Client, run_id: UUID) -> Change:
        retried = await client.runs.retry(run_id, from_step=from_step, failed_steps=failed_steps)
        text = f"retried as {retried.run_id}"
        if retried.already_existed:
            text = f"a run follows it already: {retried.run_id}, which is {retried.status_at_start}"
        return Change(not retried.already_existed, text, retried.run_id)

    def every(client: Client) -> ChangeAll:
        return client.runs.retry_all

    async def plan(client: Client, run_id: UUID) -> RetryPlan:
        return await client.runs.retry_plan(run_id, failed_steps=failed_steps)

    act(Act("retried", one, every, plan), references, **chosen)


@command(
    "fork",
    examples=(
        "holdfast runs fork checkout/order-7 --step charge",
        """holdfast runs fork 3f9a --index 12 --input '{"id": 8}'""",
        """holdfast runs fork 3f9a --step ship --result charge='{"paid": true}'""",
        """holdfast runs fork analyze/site-7 --result sentiment='"good"'""",
    ),
)
@click.argument("reference", metavar="RUN")
@option("--step KEY", "Keep the log before this step, activity, child or timer.")
@option("--index", "Keep this many events of the log.", type=click.IntRange(1))
@option("--input JSON", "Use this input: JSON, @FILE, or -.", name="payload")
@option(
    "--result KEY=JSON...",
    "Use this result for a step or activity that is kept, or for any step of a flow; may be "
    "repeated.",
    name="results",
)
@option("--workflow-version", "Use this version of the workflow.", type=click.IntRange(1))
@app_option
def fork(
    reference: str,
    step: str | None,
    index: int | None,
    payload: str | None,
    results: tuple[str, ...],
    workflow_version: int | None,
    app_reference: str | None,
) -> None:
    """Start a new run from a place in the log of another, and write its id.

    The log up to that place is kept, so its steps are not executed again. Without --step and
    --index, everything before the end of the run is kept. The other run is not changed.
    `holdfast runs log` shows the keys and indexes.

    The fork of a flow keeps the steps that completed. The steps after one with another result run
    again, and so do --step with all after it; with --input all steps without a --result.
    """
    from holdfast.cli.process.loading import load_app
    from holdfast.cli.render.runs import run_object

    options: ForkOptions = {"step": step, "index": index, "version": workflow_version}
    options["results"] = named_values(results, "result")
    app = load_app(app_reference)

    async def work(link: Link) -> Answer:
        origin = await find_run(link.client, reference)
        if payload is not None:
            text = read_json(payload, "input")
            ours = app if app is not None and app.name == origin.app else None
            known = ours and ours.startable(origin.name, workflow_version or origin.version)
            options["input"] = known.decode_input(text) if known else decoded(text)
        forked = await link.client.runs.fork(origin.run_id, **options)
        run = (await forked.get()).record
        return Answer(run_object(run), str(run.run_id))

    answer(work, app=app)


@command(
    "set-attributes",
    examples=(
        "holdfast runs set-attributes checkout/order-7 customer=acme seats=12",
        "holdfast runs set-attributes 3f9a --remove trial",
    ),
)
@click.argument("reference", metavar="RUN")
@click.argument("attributes", metavar="[NAME=VALUE]...", nargs=-1)
@option("--remove NAME...", "Remove this attribute; may be repeated.")
def set_attributes(reference: str, attributes: tuple[str, ...], remove: tuple[str, ...]) -> None:
    """Set attributes of a run, open or ended, by which lists find it.

    VALUE is a number, true or false, and else a text; a number in double quotes is a text.
    """
    from holdfast.values.attributes import attribute_filters

    changes = {**attribute_values(attributes), **dict.fromkeys(remove)}
    if not changes:
        raise click.UsageError("give NAME=VALUE, or --remove NAME")

    async def work(link: Link) -> Answer:
        run_id = (await find_run(link.client, reference)).run_id
        found = await link.client.runs.set_attributes(run_id, changes)
        text = ", ".join(attribute_filters(found)) or "no attributes"
        return Answer({"run_id": run_id, "attributes": found}, f"run {run_id}: {text}")

    answer(work)


@command(
    "set-tags",
    examples=(
        "holdfast runs set-tags checkout/order-7 --add reviewed --remove new",
        "holdfast runs set-tags 3f9a mail urgent",
    ),
)
@click.argument("reference", metavar="RUN")
@click.argument("tags", metavar="[TAG]...", nargs=-1)
@option("--add TAG...", "Add this tag; may be repeated.")
@option("--remove TAG...", "Remove this tag; may be repeated.")
def set_tags(
    reference: str, tags: tuple[str, ...], add: tuple[str, ...], remove: tuple[str, ...]
) -> None:
    """Change the tags of a run, open or ended.

    With TAGs it has these and no others; without, --add and --remove change those that it has.
    """
    if not (tags or add or remove):
        raise click.UsageError("give tags, --add or --remove")

    async def work(link: Link) -> Answer:
        run_id = (await find_run(link.client, reference)).run_id
        found = await link.client.runs.set_tags(run_id, tags or None, add=add, remove=remove)
        text = f"run {run_id}: {', '.join(found) or 'no tags'}"
        return Answer({"run_id": run_id, "tags": found}, text)

    answer(work)


@command(
    "reschedule",
    examples=(
        "holdfast runs reschedule checkout/order-7 --to-queue slow",
        "holdfast runs reschedule 3f9a --delay 2h --timeout 30m",
        "holdfast runs reschedule --workflow report --state queued --start-at 2030-01-31T22:00Z",
        "holdfast runs reschedule checkout/order-7 --no-deadline",
    ),
)
@run_options
@option(
    "--to-queue NAME",
    "Take the turns of the runs from this queue from now on.",
    name="queue",
    callback=filled,
)
@option("--delay TIME", "Let runs that have not begun begin after TIME.", type=duration)
@option(
    "--start-at MOMENT",
    "Let runs that have not begun begin at MOMENT: 2030-01-31T12:00.",
    type=future_moment,
)
@option("--deadline MOMENT", "End the runs at this moment.", type=future_moment)
@option(
    "--timeout TIME",
    "End the runs after TIME, counted from now, or from the start that they wait for.",
    type=duration,
)
@option("--no-deadline", "Take the deadlines of the runs away.")
@option("--reason TEXT", "Why; recorded in the log.")
def reschedule(reason: str | None, **chosen: Any) -> None:
    """Change the queue, the start or the deadline of runs that have not ended.

    Name the runs, or give filters. A run that a worker holds leaves its queue when it next
    suspends. The start of a run can change until a worker has begun it, and its deadline moves
    with it. Exit code 1 if a named run was so before, cannot be changed so, or has ended.
    """
    from holdfast.client.rescheduling import RescheduleOptions, read_change
    from holdfast.errors import ConfigurationError

    change = {name: chosen.pop(name) for name in RescheduleOptions.__annotations__}
    try:
        read_change(cast("RescheduleOptions", change))
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    words = ("rescheduled", "rescheduled", "it was so before")
    change_runs("reschedule", *words, chosen, reason=reason, **change)
