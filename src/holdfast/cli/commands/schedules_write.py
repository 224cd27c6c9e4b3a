"""`holdfast schedules create` and `update`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from holdfast.cli.answers import Answer, answer
from holdfast.cli.commands.schedules import overlap_option
from holdfast.cli.framework import command
from holdfast.cli.inputs import app_option, duration, given_options, read_json

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.client import ScheduleInfo
    from holdfast.definitions.app import App

F = TypeVar("F", bound=Callable[..., object])

_NONE: Final = "none"
_OPTIONS = (
    click.option("--cron", metavar="EXPR", help="Five fields, six with seconds, or @daily."),
    click.option("--every", metavar="TIME", type=duration, help="At this interval: 90s, 15m, 1d."),
    click.option(
        "--anchor", metavar="MOMENT", help="Count intervals from this moment. Default: --start."
    ),
    click.option(
        "--timezone",
        metavar="ZONE",
        help="Of the expression, and of moments without an offset: Europe/Berlin. Default: UTC.",
    ),
    click.option("--start", metavar="MOMENT", help="No tick before this moment, in ISO 8601."),
    click.option("--end", metavar="MOMENT", help="No tick after this moment, in ISO 8601."),
    overlap_option,
    click.option(
        "--catch-up", metavar="TIME", type=duration, help="Make up for ticks that are so late."
    ),
    click.option("--max-missed", type=int, help="Make up for so many missed ticks at most."),
    click.option("--jitter", metavar="TIME", type=duration, help="Start each run up to so late."),
    click.option(
        "--bucket-retention",
        metavar="TIME",
        type=duration,
        help="Keep what each tick did for so long.",
    ),
    click.option("--queue", metavar="NAME", help="Let the workers of this queue do the runs."),
    click.option("--priority", type=click.IntRange(0, 4), help="From 0 (first) to 4 (last)."),
    click.option("--timeout", metavar="TIME", type=duration, help="End runs that take longer."),
    click.option("--retention", metavar="TIME", type=duration, help="Keep ended runs for so long."),
    click.option("--tag", "tags", metavar="TAG", multiple=True, help="Of each run; repeatable."),
    click.option(
        "--attribute",
        "attributes",
        metavar="NAME=VALUE",
        multiple=True,
        help="Of each run; repeatable.",
    ),
    click.option("--group", metavar="TEXT", help="Of each message to a FIFO queue."),
    click.option("--workflow-version", type=click.IntRange(1), help="Start this version."),
    click.option("--note", metavar="TEXT", help="A note for people."),
    app_option,
)


def schedule_options(fn: F) -> F:
    """Declare the options that `create` and `update` share."""
    for option in reversed(_OPTIONS):
        fn = option(fn)
    return fn


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
@click.option("--topic", metavar="TOPIC", help="Publish an event to this topic at each tick.")
@click.option("--message-queue", metavar="QUEUE", help="Send a message to this queue at each tick.")
@click.option("--paused", is_flag=True, help="Create it paused.")
@schedule_options
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
@click.option("--input", metavar="JSON", help="Another input of each run: JSON, @FILE or -.")
@schedule_options
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
    from holdfast.cli.render.console import decoded

    return decoded(text) if app is None else app.startable(workflow, version).decode_input(text)


async def _answer(link: Link, schedule: ScheduleInfo) -> Answer:
    from holdfast.cli.render.console import console
    from holdfast.cli.render.schedules import schedule_lines, schedule_object

    now = await link.store.now()

    def write() -> None:
        output = console()
        for line in schedule_lines(schedule.record, now):
            output.print(line, soft_wrap=True, markup=False)

    return Answer(schedule_object(schedule.record), write)
