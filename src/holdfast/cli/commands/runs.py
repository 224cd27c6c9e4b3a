"""`holdfast runs`: the group, and the messages to a run: signal and update."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import click

from holdfast.cli.answers import Answer, answer
from holdfast.cli.finding import find_parent, find_run
from holdfast.cli.framework import Group, command, option
from holdfast.cli.inputs import duration, filled, filter_options, json_of, read_filters
from holdfast.cli.render.console import write_json
from holdfast.errors import HoldfastError
from holdfast.insight.wording import moment
from holdfast.values.moments import to_micros

if TYPE_CHECKING:
    from uuid import UUID

    from holdfast.cli.connecting import Link


_HERE = "holdfast.cli.commands"
_SOON: Final = 2.0  # seconds; a served update is answered before, or is at work


@click.group(
    "runs",
    cls=Group,
    sources={
        "list": f"{_HERE}.runs_read:list_runs",
        "count": f"{_HERE}.runs:count",
        "show": f"{_HERE}.runs_show:show",
        "log": f"{_HERE}.runs_read:log",
        "export": f"{_HERE}.replay:export",
        "stack": f"{_HERE}.replay:stack",
        "stream": f"{_HERE}.runs_written:stream",
        "logs": f"{_HERE}.runs_written:logs",
        "why": f"{_HERE}.runs_show:why",
        "wait": f"{_HERE}.runs_read:wait",
        "webhooks": f"{_HERE}.runs_read:webhooks",
        "set-attributes": f"{_HERE}.runs_act:set_attributes",
        "set-tags": f"{_HERE}.runs_act:set_tags",
        "signal": f"{_HERE}.runs:signal",
        "update": f"{_HERE}.runs:update",
        "cancel": f"{_HERE}.runs_act:cancel",
        "terminate": f"{_HERE}.runs_act:terminate",
        "pause": f"{_HERE}.runs_act:pause",
        "resume": f"{_HERE}.runs_act:resume",
        "reschedule": f"{_HERE}.runs_act:reschedule",
        "retry": f"{_HERE}.runs_act:retry",
        "fork": f"{_HERE}.runs_act:fork",
        "move-build": f"{_HERE}.builds:move_build",
    },
    examples=(
        "holdfast runs list --state waiting --workflow checkout",
        "holdfast runs show checkout/order-7",
        """holdfast runs signal checkout/order-7 packed '{"boxes": 2}'""",
    ),
)
def runs() -> None:
    """Look at runs, send them messages, and change them.

    RUN is an id, at least four digits of the beginning or end of an id, or a workflow and a
    key: checkout/order-7, or with the app, shop/checkout/order-7.
    """


@command(
    "count",
    examples=(
        "holdfast runs count --by state --workflow checkout",
        "holdfast runs count --by customer --state failed --since 24h --json",
    ),
)
@option(
    "--by NAME",
    "workflow, state, queue, tag, or the name of an attribute. A run counts for each of its tags.",
    required=True,
)
@filter_options
def count(by: str, **options: object) -> None:
    """Count runs by workflow, state, queue, tag or an attribute, most first.

    The filters are those of `holdfast runs list`. At most the newest 10,000 runs that match are
    counted; the command says how far it searched.
    """
    filters = read_filters(options)

    async def work(link: Link) -> Answer:
        counted = await link.client.runs.count(by, **await find_parent(link.client, filters))
        until = counted.searched_until

        def write() -> None:
            for value, runs in counted.counts.items():
                click.echo(f"{runs:>7,}  {value}")
            if not counted.counts:
                click.echo(f"no runs in {link.database}", err=True)
            if until is not None:
                since = moment(to_micros(until))
                click.echo(f"counted only runs created since {since}", err=True)

        return Answer(counted, write)

    answer(work)


@command(
    "signal",
    examples=(
        """holdfast runs signal checkout/order-7 packed '{"boxes": 2}' --id parcel-99""",
        "holdfast runs signal 3f9a approved",
    ),
)
@click.argument("reference", metavar="RUN")
@click.argument("name")
@click.argument("payload", required=False, callback=json_of("payload"))
@option(
    "--id ID", "Deliver once, even if this id is sent again.", name="signal_id", callback=filled
)
async def signal(
    link: Link, reference: str, name: str, payload: object, signal_id: str | None
) -> Answer:
    """Send a run the signal NAME.

    PAYLOAD is JSON, @FILE, or - for stdin; the default is null. Exit code 1 if the run has ended.
    """
    run_id = (await find_run(link.client, reference)).run_id
    delivered = await link.client.signal(run_id, name, payload, signal_id)
    text = f"sent {name} to run {run_id}"
    if not delivered:
        text = f"run {run_id} had received signal {signal_id} before"
    return Answer({"run_id": run_id, "delivered": delivered}, text)


@command(
    "update",
    examples=(
        """holdfast runs update checkout/order-7 add-item '{"sku": "A7"}' --timeout 10s""",
        "holdfast runs update 3f9a refresh --id monday",
    ),
)
@click.argument("reference", metavar="RUN")
@click.argument("name")
@click.argument("payload", required=False, callback=json_of("payload"))
@option(
    "--id ID", "Carry out once, even if this id is sent again.", name="update_id", callback=filled
)
@option("--timeout TIME", "Stop waiting after this time (exit code 5).", type=duration)
async def update(
    link: Link,
    reference: str,
    name: str,
    payload: object,
    update_id: str | None,
    timeout: float | None,
) -> Answer:
    """Ask a run to carry out the update NAME, and write its answer.

    PAYLOAD is JSON, @FILE, or - for stdin; the default is null. Exit code 1 if the run refuses the
    update, fails to carry it out, or has ended.
    """
    import asyncio

    sent_as = update_id or str(uuid4())
    run_id = (await find_run(link.client, reference)).run_id
    telling = asyncio.create_task(_tell_unserved(link, run_id, name))
    try:
        result = await link.client.update(run_id, name, payload, update_id=sent_as, timeout=timeout)
    except asyncio.CancelledError:
        again = f"repeat the command with --id {sent_as} to get the answer"
        click.echo(f"the run may still carry it out; {again}", err=True)
        raise
    finally:
        telling.cancel()
    told = {"run_id": run_id, "update_id": sent_as, "result": result}
    return Answer(told, lambda: write_json(result))


async def _tell_unserved(link: Link, run_id: UUID, name: str) -> None:
    """Say after a while that no handler serves an update, as when its name is misspelt."""
    import asyncio

    from holdfast.types import awaits_update

    await asyncio.sleep(_SOON)
    with suppress(HoldfastError):
        run = await link.client.runs.get(run_id)
        if run.state != "waiting" or run.wait is None:
            return  # a worker may be about to take it
        if not awaits_update(run.wait.awaiting, name):
            told = f"update {name!r} came, and no handler serves it"
            click.echo(f"{told}: it waits until the code sets one", err=True)
