"""`holdfast schedules create`, `update`, `backfill` and `cancel-backfills`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import click

from holdfast.cli.answers import Answer, answer, call
from holdfast.cli.commands.schedules import overlap_option
from holdfast.cli.framework import command, option, together
from holdfast.cli.inputs import app_option, confirm, duration, given_options, read_json
from holdfast.cli.render.console import console, decoded
from holdfast.insight.wording import several

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.client import ScheduleInfo
    from holdfast.definitions.app import App
    from holdfast.types import Overlap, ScheduleRecord


_NONE: Final = "none"
_UNASKED: Final = 100  # a backfill of more ticks has to be confirmed
_COUNTED: Final = 10_000  # of more ticks it is only said that they are more
# Of `create` and `update`.
_options = together(
    option("--cron EXPR", "Five fields, six with seconds, or @daily."),
    option("--every TIME", "At this interval: 90s, 15m, 1d.", type=duration),
    option("--anchor MOMENT", "Count intervals from this moment. Default: --start."),
    option(
        "--timezone ZONE",
        "Of the expression, and of moments without an offset: Europe/Berlin. Default: UTC.",
    ),
    option("--start MOMENT", "No tick before this moment, in ISO 8601."),
    option("--end MOMENT", "No tick after this moment, in ISO 8601."),
    overlap_option,
    option("--catch-up TIME", "Make up for ticks that are up to TIME late.", type=duration),
    option("--max-missed N", "Make up for at most N missed ticks.", type=int),
    option("--jitter TIME", "Start each run up to TIME late.", type=duration),
    option("--bucket-retention TIME", "Keep for TIME what each tick did.", type=duration),
    option("--queue NAME", "Let the workers of this queue do the runs."),
    option("--priority", "From 0 (first) to 4 (last).", type=click.IntRange(0, 4)),
    option("--timeout TIME", "End runs that take longer.", type=duration),
    option("--retention TIME", "Keep ended runs for TIME.", type=duration),
    option("--tag TAG...", "Of each run; repeatable.", name="tags"),
    option("--attribute NAME=VALUE...", "Of each run; repeatable.", name="attributes"),
    option("--group TEXT", "Of each message to a FIFO queue."),
    option("--workflow-version", "Start this version.", type=click.IntRange(1)),
    option("--note TEXT", "A note for people."),
    app_option,
)


@command(
    "create",
    examples=(
        "holdfast schedules create nightly report --cron '0 3 * * *' --timezone Europe/Berlin",
        """holdfast schedules create poll shop/fetch '{"url": "…"}' --every 15m --jitter 30s""",
        "holdfast schedules create nightly report --cron @daily --overlap buffer_one --paused",
        "holdfast schedules create shop/clock --topic clock.hour --cron @hourly",
        """holdfast schedules create shop/poll --message-queue polls '{"url": "…"}' --every 15m""",
    ),
)
@click.argument("name")
@click.argument("workflow", required=False)
@click.argument("input", required=False)
@option("--topic TOPIC", "Publish an event to this topic at each tick.")
@option("--message-queue QUEUE", "Send a message to this queue at each tick.")
@option("--paused", "Create it paused.")
@_options
def create(
    *,
    name: str,
    workflow: str | None,
    input: str | None,
    topic: str | None,
    message_queue: str | None,
    paused: bool,
    app_reference: str | None,
    cron: str | None,
    **given: Any,
) -> None:
    """Create the schedule NAME, which starts WORKFLOW at each tick.

    Give --cron or --every. WORKFLOW is the name of a workflow or a flow, or app/name. INPUT is
    JSON, @FILE, or - for stdin; the default is null. With --app, it is checked against the type
    that the workflow declares. With --topic or --message-queue there is no WORKFLOW: INPUT is the
    payload. Exit code 1 if there is a schedule of this name, 4 if there is no such queue.
    """
    from holdfast.cli.process.loading import load_app

    options, app = given_options(given), load_app(app_reference)
    create: dict[str, Any] = options | {"cron": cron, "paused": paused}
    if topic is not None or message_queue is not None:
        if input is not None:
            raise click.UsageError("with --topic or --message-queue there is no WORKFLOW")
        create |= {"topic": topic, "message_queue": message_queue}
        create["input"] = _checked(None, "", None, read_json(workflow, "input"))
    elif workflow is None:
        raise click.UsageError("give a WORKFLOW, --topic or --message-queue")
    else:
        text = read_json(input, "input")
        named = workflow if app is None else workflow.removeprefix(f"{app.name}/")
        create["workflow"] = workflow
        create["input"] = _checked(app, named, options.get("version"), text)

    async def work(link: Link) -> Answer:
        return await _answer(link, await link.client.schedules.create(name, **create))

    answer(work, app=app)


@command(
    "update",
    examples=(
        "holdfast schedules update nightly --cron '30 3 * * *'",
        """holdfast schedules update nightly --input '{"kind": "full"}' --end 2027-01-01""",
        "holdfast schedules update nightly --end none",
    ),
)
@click.argument("name")
@option("--input JSON", "Another input of each run: JSON, @FILE or -.")
@_options
def update(
    *, name: str, input: str | None, app_reference: str | None, cron: str | None, **given: Any
) -> None:
    """Change what is given of the schedule NAME; the rest stays.

    `--start none`, `--end none` and `--note none` take these away. A change of a schedule that an
    app has in its code holds until the code changes it. Exit code 4 if there is no such schedule.
    """
    from holdfast.cli.process.loading import load_app

    options = given_options(given)
    for each in ("start", "end", "note"):
        if options.get(each) == _NONE:
            options[each] = None
    text = None if input is None else read_json(input, "input")
    if cron is None and text is None and not options:
        raise click.UsageError("give what is to be changed")
    app = load_app(app_reference)

    async def work(link: Link) -> Answer:
        if text is not None:
            from holdfast.types import RunTarget

            target = (await link.client.schedules.get(name)).record.target
            of, _, workflow = target.name.rpartition("/")
            if app is not None and of == app.name and isinstance(target, RunTarget):
                options["input"] = _checked(app, workflow, target.version, text)
            else:
                options["input"] = _checked(None, workflow, None, text)
        return await _answer(link, await link.client.schedules.update(name, cron, **options))

    answer(work, app=app)


def _checked(app: App | None, workflow: str, version: int | None, text: str) -> object:
    """Return an input, checked against the type that an app's workflow declares for it."""
    return decoded(text) if app is None else app.startable(workflow, version).decode_input(text)


async def _answer(link: Link, schedule: ScheduleInfo) -> Answer:
    from holdfast.cli.render.schedules import schedule_lines, schedule_object

    now = await link.store.now()

    def write() -> None:
        output = console()
        for line in schedule_lines(schedule.record, now):
            output.print(line, soft_wrap=True, markup=False)

    return Answer(schedule_object(schedule.record), write)


@command(
    "backfill",
    examples=(
        "holdfast schedules backfill nightly 2026-03-01 2026-03-07T12:00 --overlap allow",
        "holdfast schedules backfill nightly 2026-01-01 2026-03-01 --dry-run",
    ),
)
@click.argument("name")
@click.argument("start")
@click.argument("end")
@overlap_option
@option("--dry-run", "Say how many ticks these are, and fire none.")
@option("--yes", "Do not ask, however many ticks these are.")
def backfill(
    name: str, start: str, end: str, overlap: str | None, dry_run: bool, yes: bool
) -> None:
    """Fire the ticks of NAME from START to END, moments of the past; a worker does so soon.

    Moments are in ISO 8601; without an offset they are read in the schedule's time zone. Ticks
    that have started a run do not start another one. Runs follow one another, unless --overlap
    says otherwise. More than 100 ticks have to be confirmed; `cancel-backfills` ends it.
    """

    async def find(link: Link) -> ScheduleRecord:
        return (await link.client.schedules.get(name)).record

    async def ask(link: Link) -> None:
        group = link.client.schedules
        await group.backfill(full, start, end, overlap=cast("Overlap | None", overlap))

    record = call(find)
    full, count = record.name, _count_ticks(record, start, end)
    text = f"the ticks of {full} from {start} to {end}: {_said(count)}"
    if not dry_run:
        if count > _UNASKED and not yes:
            confirm(f"fire {text}?")
        call(ask)
    counted = count if count <= _COUNTED else None
    told = {"schedule": full, "start": start, "end": end, "ticks": counted, "dry_run": dry_run}
    Answer(told, f"a worker {'would fire' if dry_run else 'fires'} {text}").write()


@command("cancel-backfills", examples=("holdfast schedules cancel-backfills nightly",))
@click.argument("name")
async def cancel_backfills(link: Link, name: str) -> Answer:
    """End all backfills of the schedule NAME; runs that they have started continue.

    Ticks of theirs that wait for the end of a run are skipped. Exit code 4 if there is no such
    schedule.
    """
    done = await link.client.schedules.cancel_backfills(name)
    ticks = several(done.waiting_ticks, "waiting tick")
    text = f"{several(done.backfills, 'backfill')} cancelled, {ticks} dropped"
    return Answer({"backfills": done.backfills, "waiting_ticks": done.waiting_ticks}, text)


def _count_ticks(record: ScheduleRecord, start: str, end: str) -> int:
    """Return how many ticks a range has; of too many to count, one more than are counted."""
    from holdfast.client.scheduling import read_tick
    from holdfast.schedules.ticks import ticks_between

    first, last = read_tick("start", start, record.when), read_tick("end", end, record.when)
    return len(ticks_between(record.when, first - 1, last, _COUNTED + 1))


def _said(count: int) -> str:
    return several(count, "tick") if count <= _COUNTED else f"more than {_COUNTED:,} ticks"
