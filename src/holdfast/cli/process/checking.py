"""Check a deploy in this process, or in several: each replays a part of the runs."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import click

from holdfast.cli.connecting import Link, with_link
from holdfast.cli.exits import USAGE, Refusal
from holdfast.cli.process.loading import AppReference
from holdfast.cli.settings import Settings
from holdfast.errors import UnknownBuild
from holdfast.insight.check import Check, CheckReport, Part, merged
from holdfast.values.names import check_build


@dataclass(frozen=True, slots=True)
class Wish:
    """What to check: an app, and which runs or exported logs."""

    app: str
    workflows: tuple[str, ...] = ()
    sample: int | None = None
    since: datetime | None = None
    logs: str | None = None
    build: str | None = None


def check_in_parts(settings: Settings, wish: Wish, jobs: int) -> CheckReport:
    """Check in this many processes; say on a terminal how far it is."""
    if wish.build is not None:
        _check_build(settings, wish.app, check_build(wish.build))
    parts = [Part(number, jobs) for number in range(jobs)]
    if jobs == 1:
        return check_part(settings, wish, parts[0])
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        return merged(pool.map(partial(check_part, settings, wish), parts))


def _check_build(settings: Settings, reference: str, build: str) -> None:
    """Raise UnknownBuild if no worker of this build of the app has ever signed on."""
    with redirect_stdout(sys.stderr):
        app = AppReference.parse(reference).load()

    async def work(link: Link) -> None:
        known = [each.build for each in await link.store.list_builds(app.name)]
        if build not in known:
            raise UnknownBuild(app.name, build, known)

    with_link(settings, work)


def check_part(settings: Settings, wish: Wish, part: Part) -> CheckReport:
    """Load the app and check a part of the runs. What its code prints goes to stderr."""
    with redirect_stdout(sys.stderr):
        app = AppReference.parse(wish.app).load()
        check = Check(app, wish.workflows)
        if wish.logs is not None:
            check.add_files(_files(Path(wish.logs)), part)
            return check.report()

        async def work(link: Link) -> None:
            await check.add_open_runs(
                link.store,
                since=wish.since,
                sample=wish.sample,
                build=wish.build,
                part=part,
                told=partial(_tell, part),
            )

        with_link(settings, work, app=app)
        return check.report()


def _files(place: Path) -> list[Path]:
    """Return the exported logs of a directory, or the file itself."""
    found = [place] if place.is_file() else sorted(place.rglob("*.jsonl"))
    if not found:
        raise Refusal(
            f"there are no files *.jsonl in {place}: `holdfast runs export RUN -o FILE` writes one",
            USAGE,
        )
    return found


def _tell(part: Part, checked: int) -> None:
    """Say on a terminal how many runs were checked; the first part speaks for all."""
    if part.number == 0 and sys.stderr.isatty():
        click.echo(f"\rchecked {checked * part.count:,} runs …\r", nl=False, err=True)
