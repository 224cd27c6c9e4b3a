"""`holdfast schedules`: look at schedules, pause, trigger and backfill them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from holdfast.cli.answers import Answer, call
from holdfast.cli.framework import Group, command, option
from holdfast.cli.inputs import confirm, duration
from holdfast.cli.render.console import console
from holdfast.values.moments import to_datetime, to_micros

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.client import ScheduleInfo
    from holdfast.types import Overlap, When

_HERE = "holdfast.cli.commands.schedules"
_WRITING = "holdfast.cli.commands.schedules_write"

# Those of `Overlap`; its module would make `--help` slower.
OVERLAPS: Final = (
    "skip",
    "buffer_one",
    "buffer_all",
    "allow",
    "cancel_running",
    "terminate_running",
)

overlap_option = option(
    "--overlap",
    "What a tick does while a run of the schedule has not ended.",
    type=click.Choice(OVERLAPS),
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
        "backfill": f"{_WRITING}:backfill",
        "cancel-backfills": f"{_WRITING}:cancel_backfills",
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
@option("--app NAME", "Only those of this app.")
@option("--after NAME", "Continue after this schedule.")
@option("--limit", type=click.IntRange(1, 10_000), default=100)
async def list_schedules(link: Link, app: str | None, after: str | None, limit: int) -> Answer:
    """List schedules with their last and their next fire times."""
    from holdfast.cli.render.schedules import schedule_object, schedules_table

    found = await link.client.schedules.list(app=app, after=after, limit=limit)
    now = await link.store.now()

    def write() -> None:
        console().print(schedules_table([each.record for each in found], now))
        if len(found) == limit:
            click.echo(f"there may be more: --after {found[-1].name}", err=True)

    objects = [schedule_object(each.record) for each in found]
    return Answer(objects, write, none=f"no schedules in {link.database}")


@command("show", examples=("holdfast schedules show nightly", "holdfast schedules show a/b --json"))
@click.argument("name")
@option(
    "--ticks N",
    "Show what the last N ticks did.",
    name="limit",
    type=click.IntRange(0, 1000),
    default=10,
)
async def show(link: Link, name: str, limit: int) -> Answer:
    """Show one schedule: what it starts or sends, when it fires next, what its last ticks did.

    Exit code 4 if the database has no such schedule.
    """
    from holdfast.cli.render.schedules import (
        bucket_line,
        bucket_object,
        local_text,
        schedule_lines,
        schedule_object,
    )

    schedule = await link.client.schedules.get(name)
    found = await link.client.schedules.ticks(schedule.name, limit=limit)
    buckets, now = [each.bucket for each in found], await link.store.now()
    coming = [] if schedule.paused_at or schedule.error else _coming(schedule)

    def write() -> None:
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

    ticks = [bucket_object(each) for each in buckets]
    fields = schedule_object(schedule.record) | {"next_ticks": coming, "ticks": ticks}
    return Answer(fields, write)


@command(
    "next",
    examples=(
        "holdfast schedules next nightly",
        "holdfast schedules next '0 9 * * 1-5' --timezone Europe/Berlin --count 3",
        "holdfast schedules next --every 15m",
    ),
)
@click.argument("schedule", required=False)
@option("--every TIME", "At this interval: 90s, 15m, 1d.", type=duration)
@option("--timezone ZONE", "Of an expression. Default: UTC.")
@option("--count", type=click.IntRange(1, 1000), default=10)
def next_moments(
    schedule: str | None, every: float | None, timezone: str | None, count: int
) -> None:
    """Show the next moments at which SCHEDULE fires.

    SCHEDULE is the name of one, or a cron expression in quotes, for which no database is needed.
    """
    from holdfast.cli.render.schedules import local_text
    from holdfast.schedules import next_ticks, parse_when

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

        when = call(work)
    ticks = next_ticks(when, to_micros(datetime.now(UTC)), count)
    found = [to_datetime(tick) for tick in ticks]
    text = "\n".join(local_text(moment, when.timezone) for moment in found)
    Answer(found, text, none="it does not fire any more").write()


@command(
    "pause", examples=('holdfast schedules pause nightly --note "until the new disks are there"',)
)
@click.argument("name")
@option("--note TEXT", "Say why; it is shown with the schedule.")
async def pause(link: Link, name: str, note: str | None) -> Answer:
    """Let the ticks of NAME pass without starting runs; runs that it started continue.

    Exit code 1 if it was paused before, 4 if there is no such schedule.
    """
    changed = await link.client.schedules.pause(name, note)
    text = f"schedule {name} {'is paused' if changed else 'was paused before'}"
    return Answer({"changed": changed}, text, ok=changed)


@command("resume", examples=("holdfast schedules resume nightly",))
@click.argument("name")
async def resume(link: Link, name: str) -> Answer:
    """Let NAME fire again, from its next tick on; `backfill` makes up for those of the pause.

    Exit code 1 if it was not paused, 4 if there is no such schedule.
    """
    changed = await link.client.schedules.resume(name)
    text = f"schedule {name} {'is resumed' if changed else 'was not paused'}"
    return Answer({"changed": changed}, text, ok=changed)


@command(
    "trigger",
    examples=("holdfast schedules trigger nightly", "holdfast schedules trigger nightly --json"),
)
@click.argument("name")
@option("--at MOMENT", "The tick's moment, in ISO 8601. Default: now.")
@overlap_option
async def trigger(link: Link, name: str, at: str | None, overlap: Overlap | None) -> Answer:
    """Fire NAME now, also if it is paused, and write the id of the run or of the message.

    The same moment again is the same tick: it starts one run, or sends once. Exit code 1 if no run
    was started and nothing was sent.
    """
    from holdfast.cli.render.schedules import bucket_line, bucket_object

    tick = await link.client.schedules.trigger(name, at=at, overlap=overlap)
    made = tick.message_id if tick.run_id is None else tick.run_id

    def write() -> None:
        text = bucket_line(tick.bucket, "UTC") if made is None else str(made)
        click.echo(text, err=made is None)

    ok = tick.outcome in ("started", "sent", "buffered")
    return Answer(bucket_object(tick.bucket), write, ok=ok)


@command("delete", examples=("holdfast schedules delete nightly --yes",))
@click.argument("name")
@option("--yes", "Do not ask.")
def delete(name: str, yes: bool) -> None:
    """Delete the schedule NAME, with what its ticks did; runs that it started continue.

    A worker whose app has it in its code creates it again when it starts: `pause` holds. Exit
    code 4 if there is no such schedule.
    """

    async def find(link: Link) -> str:
        return (await link.client.schedules.get(name)).name

    full = call(find)
    if not yes:
        confirm(f"delete schedule {full}?")
    call(lambda link: link.client.schedules.delete(full))
    Answer({"schedule": full}, f"schedule {full} is deleted").write()


def _coming(schedule: ScheduleInfo) -> list[datetime]:
    return schedule.next_ticks(3, after=datetime.now(UTC))
