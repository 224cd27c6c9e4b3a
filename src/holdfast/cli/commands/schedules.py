"""`holdfast schedules`: look at schedules, pause, trigger and backfill them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast

import click

from holdfast.cli import exits
from holdfast.cli.framework import Group, command
from holdfast.cli.inputs import confirm, duration
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.client import ScheduleInfo, Tick
    from holdfast.types import Bucket, Overlap, When

_HERE = "holdfast.cli.commands.schedules"
_WRITING = "holdfast.cli.commands.schedules_write"
_BACKFILLS = "holdfast.cli.commands.backfills"

# Those of `Overlap`; its module would make `--help` slower.
OVERLAPS: Final = (
    "skip",
    "buffer_one",
    "buffer_all",
    "allow",
    "cancel_running",
    "terminate_running",
)

overlap_option = click.option(
    "--overlap",
    type=click.Choice(OVERLAPS),
    help="What a tick does while a run of the schedule has not ended.",
)


@click.group(
    "schedules",
    cls=Group,
    sources={
        "list": f"{_HERE}:list_schedules",
        "show": f"{_HERE}:show",
        "next": f"{_HERE}:next_moments",
        "create": f"{_WRITING}:create",
        "update": f"{_WRITING}:update",
        "pause": f"{_HERE}:pause",
        "resume": f"{_HERE}:resume",
        "trigger": f"{_HERE}:trigger",
        "backfill": f"{_BACKFILLS}:backfill",
        "cancel-backfills": f"{_BACKFILLS}:cancel_backfills",
        "delete": f"{_HERE}:delete",
    },
    examples=(
        "holdfast schedules list",
        "holdfast schedules show nightly",
        "holdfast schedules create nightly report --cron '0 3 * * *' --timezone Europe/Berlin",
        "holdfast schedules trigger nightly",
    ),
)
def schedules() -> None:
    """Start runs and send by the clock: list schedules, change, pause, trigger, backfill them.

    Apps have schedules in their code, which workers write to the database; others are created
    here. NAME is app/name, or the name alone if only one app has it.
    """


@command("list", examples=("holdfast schedules list", "holdfast schedules list --app shop --json"))
@click.option("--app", metavar="NAME", help="Only those of this app.")
@click.option("--after", metavar="NAME", help="Continue after this schedule.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.pass_context
def list_schedules(context: click.Context, app: str | None, after: str | None, limit: int) -> None:
    """List schedules with their last and their next fire times."""
    from holdfast.cli.connecting import with_link
    from holdfast.cli.render.console import console, write_json
    from holdfast.cli.render.schedules import schedule_object, schedules_table

    async def work(link: Link) -> tuple[list[ScheduleInfo], int, str]:
        found = await link.client.schedules.list(app=app, after=after, limit=limit)
        return found, await link.store.now(), str(link.database)

    settings = settings_of(context)
    found, now, database = with_link(settings, work)
    if settings.json:
        write_json([schedule_object(each.record) for each in found])
    elif found:
        console().print(schedules_table([each.record for each in found], now))
        if len(found) == limit:
            click.echo(f"there may be more: --after {found[-1].name}", err=True)
    else:
        click.echo(f"no schedules in {database}", err=True)


@command("show", examples=("holdfast schedules show nightly", "holdfast schedules show a/b --json"))
@click.argument("name")
@click.option(
    "--ticks",
    "limit",
    type=click.IntRange(0, 1000),
    default=10,
    show_default=True,
    help="Show what the last N ticks did.",
)
@click.pass_context
def show(context: click.Context, name: str, limit: int) -> None:
    """Show one schedule: what it starts or sends, when it fires next, what its last ticks did.

    Exit code 4 if the database has no such schedule.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.render.console import console, write_json
    from holdfast.cli.render.schedules import (
        bucket_line,
        bucket_object,
        local_text,
        schedule_lines,
        schedule_object,
    )

    async def work(link: Link) -> tuple[ScheduleInfo, list[Bucket], int]:
        schedule = await link.client.schedules.get(name)
        ticks = await link.client.schedules.ticks(schedule.name, limit=limit)
        return schedule, [each.bucket for each in ticks], await link.store.now()

    settings = settings_of(context)
    schedule, buckets, now = with_link(settings, work)
    coming = [] if schedule.paused_at or schedule.error else _coming(schedule)
    if settings.json:
        ticks = [bucket_object(each) for each in buckets]
        fields = schedule_object(schedule.record) | {"next_ticks": coming, "ticks": ticks}
        write_json(fields)
        return
    output = console()
    for line in schedule_lines(schedule.record, now):
        output.print(line, soft_wrap=True, markup=False)
    zone = schedule.when.timezone
    if coming:
        output.print("next:", style="dim")
    for moment in coming:
        output.print(f"  {local_text(moment, zone)}", soft_wrap=True, markup=False)
    if buckets:
        output.print("last:", style="dim")
    for each in buckets:
        output.print(f"  {bucket_line(each, zone)}", soft_wrap=True, markup=False)


@command(
    "next",
    examples=(
        "holdfast schedules next nightly",
        "holdfast schedules next '0 9 * * 1-5' --timezone Europe/Berlin --count 3",
        "holdfast schedules next --every 15m",
    ),
)
@click.argument("schedule", required=False)
@click.option("--every", metavar="TIME", type=duration, help="At this interval: 90s, 15m, 1d.")
@click.option("--timezone", metavar="ZONE", help="Of an expression. Default: UTC.")
@click.option("--count", type=click.IntRange(1, 1000), default=10, show_default=True)
@click.pass_context
def next_moments(
    context: click.Context,
    schedule: str | None,
    every: float | None,
    timezone: str | None,
    count: int,
) -> None:
    """Show the next moments at which SCHEDULE fires.

    SCHEDULE is the name of one, or a cron expression in quotes, for which no database is needed.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.render.console import write_json
    from holdfast.cli.render.schedules import local_text
    from holdfast.schedules import next_ticks, parse_when
    from holdfast.values.moments import to_datetime, to_micros

    settings = settings_of(context)
    expression = schedule if schedule and (" " in schedule or schedule.startswith("@")) else None
    if every is not None or expression is not None:
        if expression is None and schedule is not None:
            raise click.UsageError("give either the name of a schedule or --every, not both")
        when: When = parse_when(expression, every=every, timezone=timezone or "UTC")
    elif schedule is None:
        raise click.UsageError("give the name of a schedule, a cron expression or --every")
    else:
        name = schedule
        if timezone is not None:
            raise click.UsageError("--timezone is for an expression: a schedule has its own")

        async def work(link: Link) -> When:
            return (await link.client.schedules.get(name)).when

        when = with_link(settings, work)
    ticks = next_ticks(when, to_micros(datetime.now(UTC)), count)
    found = [to_datetime(tick) for tick in ticks]
    if settings.json:
        write_json(found)
        return
    for moment in found:
        click.echo(local_text(moment, when.timezone))
    if not found:
        click.echo("it does not fire any more", err=True)


@command(
    "pause",
    examples=('holdfast schedules pause nightly --note "until the new disks are there"',),
)
@click.argument("name")
@click.option("--note", metavar="TEXT", help="Say why; it is shown with the schedule.")
@click.pass_context
def pause(context: click.Context, name: str, note: str | None) -> None:
    """Let the ticks of NAME pass without starting runs; runs that it started continue.

    Exit code 1 if it was paused before, 4 if there is no such schedule.
    """
    from holdfast.cli.connecting import with_link

    settings = settings_of(context)
    changed = with_link(settings, lambda link: link.client.schedules.pause(name, note))
    _answer(context, changed, f"schedule {name} is paused", f"schedule {name} was paused before")


@command("resume", examples=("holdfast schedules resume nightly",))
@click.argument("name")
@click.pass_context
def resume(context: click.Context, name: str) -> None:
    """Let NAME fire again, from its next tick on; `backfill` makes up for those of the pause.

    Exit code 1 if it was not paused, 4 if there is no such schedule.
    """
    from holdfast.cli.connecting import with_link

    settings = settings_of(context)
    changed = with_link(settings, lambda link: link.client.schedules.resume(name))
    _answer(context, changed, f"schedule {name} is resumed", f"schedule {name} was not paused")


@command(
    "trigger",
    examples=("holdfast schedules trigger nightly", "holdfast schedules trigger nightly --json"),
)
@click.argument("name")
@click.option("--at", metavar="MOMENT", help="The tick's moment, in ISO 8601. Default: now.")
@overlap_option
@click.pass_context
def trigger(context: click.Context, name: str, at: str | None, overlap: str | None) -> None:
    """Fire NAME now, also if it is paused, and write the id of the run or of the message.

    The same moment again is the same tick: it starts one run, or sends once. Exit code 1 if no run
    was started and nothing was sent.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.render.console import write_json
    from holdfast.cli.render.schedules import bucket_line, bucket_object

    async def work(link: Link) -> Tick:
        group = link.client.schedules
        return await group.trigger(name, at=at, overlap=cast("Overlap | None", overlap))

    settings = settings_of(context)
    tick = with_link(settings, work)
    if settings.json:
        write_json(bucket_object(tick.bucket))
    elif tick.run_id is not None:
        click.echo(str(tick.run_id))
    elif tick.message_id is not None:
        click.echo(str(tick.message_id))
    else:
        click.echo(bucket_line(tick.bucket, "UTC"), err=True)
    context.exit(exits.OK if tick.outcome in ("started", "sent", "buffered") else exits.FAILED)


@command("delete", examples=("holdfast schedules delete nightly --yes",))
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def delete(context: click.Context, name: str, yes: bool) -> None:
    """Delete the schedule NAME, with what its ticks did; runs that it started continue.

    A worker whose app has it in its code creates it again when it starts: `pause` holds. Exit
    code 4 if there is no such schedule.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.render.console import write_json

    async def find(link: Link) -> str:
        return (await link.client.schedules.get(name)).name

    settings = settings_of(context)
    full = with_link(settings, find)
    if not yes:
        confirm(f"delete schedule {full}?")
    with_link(settings, lambda link: link.client.schedules.delete(full))
    if settings.json:
        write_json({"schedule": full})
    else:
        click.echo(f"schedule {full} is deleted")


def _coming(schedule: ScheduleInfo) -> list[datetime]:
    return schedule.next_ticks(3, after=datetime.now(UTC))


def _answer(context: click.Context, changed: bool, done: str, before: str) -> None:
    from holdfast.cli.render.console import write_json

    if settings_of(context).json:
        write_json({"changed": changed})
    else:
        click.echo(done if changed else before, err=not changed)
    context.exit(exits.OK if changed else exits.FAILED)
