"""`holdfast runs cancel`, `terminate`, `pause`, `resume` and `retry`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import click

from holdfast.cli.acting import Act, Change, ChangeAll, act, run_options
from holdfast.cli.framework import command

if TYPE_CHECKING:
    from holdfast.client import Client

_reason = click.option("--reason", help="Recorded in the log.")


@command(
    "cancel",
    examples=(
        'holdfast runs cancel checkout/order-7 --reason "the customer called"',
        "holdfast runs cancel --workflow checkout --tag trial --dry-run",
    ),
)
@run_options
@_reason
@click.pass_context
def cancel(
    context: click.Context,
    /,
    references: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    reason: str | None,
    **filters: object,
) -> None:
    """Ask runs to end: their code may clean up first.

    Name them, or give filters. Exit code 1 where one that is named had ended before.
    """

    async def one(client: Client, run_id: UUID) -> Change:
        changed = await client.cancel(run_id, reason)
        return Change(changed, "cancel asked for" if changed else "it had ended before")

    def every(client: Client) -> ChangeAll:
        return partial(client.cancel_all, reason=reason)

    act(context, Act("asked to end", one, every), references, everything, dry_run, filters)


@command(
    "terminate",
    examples=(
        'holdfast runs terminate 3f9a --reason "started by mistake"',
        "holdfast runs terminate --state stuck --since 2h",
    ),
)
@run_options
@_reason
@click.pass_context
def terminate(
    context: click.Context,
    /,
    references: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    reason: str | None,
    **filters: object,
) -> None:
    """End runs at once, without their code.

    Name them, or give filters. Exit code 1 where one that is named had ended before.
    """

    async def one(client: Client, run_id: UUID) -> Change:
        changed = await client.terminate(run_id, reason)
        return Change(changed, "terminated" if changed else "it had ended before")

    def every(client: Client) -> ChangeAll:
        return partial(client.terminate_all, reason=reason)

    act(context, Act("terminated", one, every), references, everything, dry_run, filters)


@command(
    "pause",
    examples=(
        'holdfast runs pause checkout/order-7 --reason "wrong address"',
        "holdfast runs pause --workflow checkout --state waiting",
    ),
)
@run_options
@_reason
@click.pass_context
def pause(
    context: click.Context,
    /,
    references: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    reason: str | None,
    **filters: object,
) -> None:
    """Let runs do nothing more until they are resumed.

    Running steps end and are recorded. Name the runs, or give filters; those that are started
    later are not paused: see `holdfast workflows pause` and `holdfast queues pause`. Exit code 1
    where one that is named was paused before, or has ended.
    """

    async def one(client: Client, run_id: UUID) -> Change:
        changed = await client.pause(run_id, reason)
        return Change(changed, "paused" if changed else "it was paused before")

    def every(client: Client) -> ChangeAll:
        return partial(client.pause_all, reason=reason)

    act(context, Act("paused", one, every), references, everything, dry_run, filters)


@command(
    "resume",
    examples=(
        "holdfast runs resume checkout/order-7",
        "holdfast runs resume --workflow checkout",
    ),
)
@run_options
@click.pass_context
def resume(
    context: click.Context,
    /,
    references: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    **filters: object,
) -> None:
    """Let paused runs go on.

    Name them, or give filters. Exit code 1 where one that is named was not paused.
    """

    async def one(client: Client, run_id: UUID) -> Change:
        changed = await client.resume(run_id)
        return Change(changed, "resumed" if changed else "it was not paused")

    def every(client: Client) -> ChangeAll:
        return client.resume_all

    act(context, Act("resumed", one, every), references, everything, dry_run, filters)


@command(
    "retry",
    examples=(
        "holdfast runs retry checkout/order-7",
        "holdfast runs retry --workflow checkout --since 24h --dry-run",
    ),
)
@run_options
@click.pass_context
def retry(
    context: click.Context,
    /,
    references: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    **filters: object,
) -> None:
    """Start runs that go on where others failed.

    What had come about is kept. Name the runs, or give filters: then those that failed or timed
    out are meant. A run is retried once; the retry is the one to retry if it fails too. Exit
    code 1 where one that is named was retried before, or cannot be.
    """

    async def one(client: Client, run_id: UUID) -> Change:
        retried = await client.retry(run_id)
        text = f"retried as {retried.run_id}"
        if retried.already_existed:
            text = f"it was retried before, as {retried.run_id}, which is {retried.status_at_start}"
        return Change(not retried.already_existed, text, retried.run_id)

    def every(client: Client) -> ChangeAll:
        return client.retry_all

    act(context, Act("retried", one, every), references, everything, dry_run, filters)
