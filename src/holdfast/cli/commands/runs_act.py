"""`holdfast runs wait`, `signal`, `cancel` and `terminate`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from uuid import UUID

import click

from holdfast.cli import exits
from holdfast.cli.framework import command
from holdfast.cli.inputs import duration, read_json
from holdfast.cli.settings import Settings, settings_of

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.types import Run


@command("wait", examples=("holdfast runs wait checkout/order-7 --timeout 10m",))
@click.argument("reference", metavar="RUN")
@click.option(
    "--timeout", metavar="TIME", type=duration, help="Stop waiting after so long (exit code 5)."
)
@click.pass_context
def wait(context: click.Context, reference: str, timeout: float | None) -> None:
    """Wait for a run's end, and write its output.

    The exit code says how it ended.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.finding import find_run
    from holdfast.cli.outcome import report_end
    from holdfast.cli.progress import watch_run

    settings = settings_of(context)

    async def work(link: Link) -> Run:
        run = await find_run(link.client, reference)
        return await watch_run(link, run, timeout, quiet=True)

    context.exit(report_end(settings, with_link(settings, work)))


@command(
    "signal",
    examples=(
        """holdfast runs signal checkout/order-7 packed '{"boxes": 2}' --id parcel-99""",
        "holdfast runs signal 3f9a approved",
    ),
)
@click.argument("reference", metavar="RUN")
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--id", "signal_id", help="Deliver once, however often this id is sent.")
@click.pass_context
def signal(
    context: click.Context, reference: str, name: str, payload: str | None, signal_id: str | None
) -> None:
    """Send a run the signal NAME.

    PAYLOAD is JSON, @FILE, or - for stdin. A run that has ended takes none: exit code 1.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.console import decoded, write_json
    from holdfast.cli.finding import find_run

    settings = settings_of(context)
    value = decoded(read_json(payload, "payload"))

    async def work(link: Link) -> tuple[UUID, bool]:
        run = await find_run(link.client, reference)
        return run.run_id, await link.client.signal(run.run_id, name, value, signal_id)

    run_id, delivered = with_link(settings, work)
    if settings.json:
        write_json({"run_id": run_id, "delivered": delivered})
    elif delivered:
        click.echo(f"sent {name} to run {run_id}")
    else:
        click.echo(f"run {run_id} has had signal {signal_id} before")


@command(
    "cancel",
    examples=("""holdfast runs cancel checkout/order-7 --reason "the customer called" """.strip(),),
)
@click.argument("references", metavar="RUN...", nargs=-1, required=True)
@click.option("--reason", help="Recorded in the log.")
@click.pass_context
def cancel(context: click.Context, references: tuple[str, ...], reason: str | None) -> None:
    """Ask runs to end: their code may clean up first.

    Exit code 1 where one had ended before.
    """

    async def act(link: Link, run_id: UUID) -> bool:
        return await link.client.cancel(run_id, reason)

    _act_on_each(context, settings_of(context), references, act, "cancel asked for")


@command("terminate", examples=("""holdfast runs terminate 3f9a --reason "started by mistake" """,))
@click.argument("references", metavar="RUN...", nargs=-1, required=True)
@click.option("--reason", help="Recorded in the log.")
@click.pass_context
def terminate(context: click.Context, references: tuple[str, ...], reason: str | None) -> None:
    """End runs at once, without their code.

    Exit code 1 where one had ended before.
    """

    async def act(link: Link, run_id: UUID) -> bool:
        return await link.client.terminate(run_id, reason)

    _act_on_each(context, settings_of(context), references, act, "terminated")


def _act_on_each(
    context: click.Context,
    settings: Settings,
    references: tuple[str, ...],
    act: Callable[[Link, UUID], Awaitable[bool]],
    done: str,
) -> None:
    """Find every run before the first is touched, so that a wrong one leaves all as they were."""
    from holdfast.cli.connecting import with_link
    from holdfast.cli.console import write_json
    from holdfast.cli.finding import find_run

    async def work(link: Link) -> dict[UUID, bool]:
        runs = [await find_run(link.client, each) for each in references]
        return {run.run_id: await act(link, run.run_id) for run in runs}

    outcomes = with_link(settings, work)
    if settings.json:
        write_json([{"run_id": each, "changed": changed} for each, changed in outcomes.items()])
    else:
        for run_id, changed in outcomes.items():
            click.echo(f"{run_id}: {done if changed else 'it had ended before'}")
    context.exit(exits.OK if all(outcomes.values()) else exits.FAILED)
