"""`holdfast builds` and `holdfast runs move-build`: which code runs of pinned workflows get."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from holdfast.cli.answers import Answer, answer
from holdfast.cli.finding import find_run
from holdfast.cli.framework import Group, command, option, sources
from holdfast.cli.render.console import folding, numbers, plain, table, whole
from holdfast.insight.wording import several

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.cli.connecting import Link
    from holdfast.types import BuildInfo, MovedRuns


@click.group(
    "builds",
    cls=Group,
    sources=sources(__name__, "list:list_builds", "promote", "ramp", "roll-back"),
    examples=(
        "holdfast builds list",
        "holdfast builds ramp b72c 10%",
        "holdfast builds promote b72c",
        "holdfast builds roll-back",
    ),
)
def builds() -> None:
    """List builds of apps, and choose which of them new runs get.

    A run of a pinned workflow stays with workers of the build that it was started for. The code
    says which workflows are pinned, and App(build=…) names the build. All other runs continue with
    the newest code.
    """


_app_option = option("--app NAME", "The app; needed if several have builds.")


@command("list", examples=("holdfast builds list", "holdfast builds list --app shop --json"))
@_app_option
async def list_builds(link: Link, *, app: str | None) -> Answer:
    """List builds, the newest first: open runs, workers, and which are safe to stop.

    A build is safe to stop if no open run stays with it, no new run gets it, and only its workers
    serve nothing that has open work: a workflow, version or activity that other code dropped.
    """
    found = await link.client.builds.list(app=app)
    objects = [plain(each) | {"safe_to_stop": each.safe_to_stop} for each in found]
    return Answer(objects, lambda: _table(found), none="no app has a build here")


@command(
    "promote", examples=("holdfast builds promote b72c", "holdfast builds promote b72c --app shop")
)
@click.argument("build")
@_app_option
@option("--force", "Promote it also if no worker of it has signed on yet: its runs wait.")
async def promote(link: Link, build: str, *, app: str | None, force: bool) -> Answer:
    """Let new runs of pinned workflows get BUILD.

    Runs that were started stay with their build. A ramp ends. Exit code 1 if new runs got this
    build already.
    """
    changed = await link.client.builds.promote(build, app=app, force=force)
    workers = await _workers_of(link, app, build)
    text = f"new runs get build {build}" + ("" if changed else " already")
    return Answer({"changed": changed, "current": build, "workers": workers}, text, ok=changed)


async def _workers_of(link: Link, app: str | None, build: str) -> int | None:
    """Return how many live workers serve what a build pins, None if it pins nothing; warn of 0."""
    found = await link.client.builds.list(app=app)
    info = next((each for each in found if each.build == build), None)
    if info is None or not info.pinned:
        return None
    if info.lacks_workers:
        click.echo(
            f"WARNING: no live worker has build {build} of app {info.app}: new runs wait for one",
            err=True,
        )
    return info.workers


@command("ramp", examples=("holdfast builds ramp b72c 10%", "holdfast builds ramp b72c 0%"))
@click.argument("build")
@click.argument("share")
@_app_option
async def ramp(link: Link, build: str, share: str, *, app: str | None) -> Answer:
    """Let SHARE of new runs get BUILD, and the others the current one: 10% or 10.

    A share that grows keeps the runs that it had; 0% ends the ramp. Exit code 1 if nothing changed.
    """
    changed = await link.client.builds.ramp(build, share, app=app)
    text = f"{share.removesuffix('%')}% of new runs get build {build}"
    return Answer({"changed": changed}, text + ("" if changed else " already"), ok=changed)


@command(
    "roll-back", examples=("holdfast builds roll-back", "holdfast builds roll-back --app shop")
)
@_app_option
async def roll_back(link: Link, *, app: str | None) -> Answer:
    """End the ramp; without one, let new runs get the build that they got before.

    Runs that have begun stay with their build: see `holdfast runs move-build`.
    """
    change = await link.client.builds.roll_back(app=app)
    now = "are not pinned to a build" if change.current is None else f"get build {change.current}"
    former = f"build {change.former}"
    left = (
        f"the ramp of {former} is over" if change.outcome == "ramp" else f"they got {former} before"
    )
    workers = None if change.current is None else await _workers_of(link, app, change.current)
    return Answer(plain(change) | {"workers": workers}, f"new runs {now} ({left})")


@command(
    "move-build",
    examples=(
        "holdfast runs move-build checkout/order-7 --to b72c",
        "holdfast runs move-build --from a81f --to b72c --app shop",
        "holdfast runs move-build checkout/order-7 --unpin",
    ),
)
@click.argument("references", metavar="[RUN]...", nargs=-1)
@option("--to BUILD", "The build that they move to.", name="build")
@option("--unpin", "Let them continue with the newest code.")
@option("--from BUILD", "Move all open runs of this build.", name="from_build")
@_app_option
def move_build(
    references: tuple[str, ...],
    build: str | None,
    *,
    unpin: bool,
    from_build: str | None,
    app: str | None,
) -> None:
    """Move runs to another build of their app, or to the newest code.

    Check first that the code follows their logs: `holdfast check MODULE:APP`. A run that a worker
    executes moves when it waits next. An ended run is moved for its retries. Exit code 1 if a run
    could not be moved.
    """
    if bool(references) == bool(from_build):
        raise click.UsageError("give either runs, or --from BUILD for all open runs of a build")
    if (build is None) != unpin:
        raise click.UsageError("say where they move: either --to BUILD or --unpin")

    async def work(link: Link) -> Answer:
        if from_build is not None:
            moved = await link.client.builds.move_all(from_build, build, app=app)
        else:
            run_ids = [(await find_run(link.client, each)).run_id for each in references]
            moved = await link.client.builds.move(run_ids, build)
        return _moved(moved, build)

    answer(work)


def _moved(moved: MovedRuns, build: str | None) -> Answer:
    """Return what became of runs: how many moved, and why others did not."""
    from holdfast.insight.builds import MOVE_TEXTS

    counts = Counter(moved.outcomes.values())
    where = "the newest code" if build is None else f"build {build}"
    told = [f"moved {several(counts['moved'], 'run')} to {where}"]
    told += [
        f"run {run_id}: {MOVE_TEXTS[outcome]}"
        for run_id, outcome in moved.outcomes.items()
        if outcome != "moved"
    ]
    json = {"moved": counts["moved"], "outcomes": moved.outcomes}
    return Answer(json, "\n".join(told), ok=counts["moved"] == len(moved.outcomes))


def _table(found: list[BuildInfo]) -> Table:
    """Return builds as a table, a row each."""
    counts = numbers("open runs", "workers")
    shown = table(folding("app", "build"), whole("new runs"), counts, folding(""))
    for each in found:
        share = "" if each.ramp_percent is None else f"{each.ramp_percent:g}%"
        state = "safe to stop" if each.safe_to_stop else ""
        if each.needed_for and not each.is_current:
            state = f"needed for {', '.join(each.needed_for)}"
        if each.open_runs and not each.workers:
            state = "[red]no worker[/]"
        new = "current" if each.is_current else share
        shown.add_row(each.app, each.build, new, f"{each.open_runs:,}", str(each.workers), state)
    return shown
