"""`holdfast schedules backfill`: fire ticks of the past, and cancel that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import click

from holdfast.cli.answers import Answer, call
from holdfast.cli.commands.schedules import overlap_option
from holdfast.cli.framework import command, option
from holdfast.cli.inputs import confirm
from holdfast.insight.wording import several

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.types import Overlap, ScheduleRecord

_UNASKED: Final = 100  # a backfill of more ticks has to be confirmed
_COUNTED: Final = 10_000  # of more ticks it is only said that they are more


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
