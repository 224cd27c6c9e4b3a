"""Show what a run does until it ends, and report how it ended."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Self
from uuid import UUID

import click

from holdfast.cli import exits
from holdfast.cli.connecting import Link
from holdfast.cli.render.console import write_json
from holdfast.cli.render.flows import StepLines, steps_table
from holdfast.cli.render.hints import with_database
from holdfast.cli.render.runs import event_line, run_object
from holdfast.cli.render.timeline import timeline
from holdfast.cli.settings import Settings
from holdfast.errors import ResultTimeout
from holdfast.insight.flow_progress import StepProgress
from holdfast.insight.spans import error_text, read_json
from holdfast.insight.timeline import read_spans
from holdfast.insight.wording import length
from holdfast.types import Event, LoggedEvent, RunRecord

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live


_REDRAW_SECONDS = 0.25


async def watch_run(
    link: Link, run: RunRecord, timeout: float | None, *, quiet: bool = False
) -> RunRecord:
    """Show on stderr what a run does, and return it when it has ended.

    Raises ResultTimeout after `timeout` seconds.
    """
    try:
        async with asyncio.timeout(timeout):
            if quiet:
                return (await link.client.runs.wait(run.run_id)).record
            if run.kind == "flow":
                await _watch_steps(link, run)
            elif sys.stderr.isatty():
                await _draw(link, run)
            else:
                await _follow(link, run.run_id, lambda entry: _write_line(entry, run.created_at))
            return (await link.client.runs.wait(run.run_id)).record
    except asyncio.CancelledError:
        again = with_database(f"`holdfast runs wait {run.run_id}` waits for it again")
        click.echo(f"the run continues; {again}", err=True)
        raise
    except TimeoutError:
        assert timeout is not None
        raise ResultTimeout(run.run_id, timeout) from None


async def _follow(link: Link, run_id: UUID, show: Callable[[LoggedEvent], None]) -> None:
    async with aclosing(link.client.runs.follow_log(run_id)) as entries:
        async for entry in entries:
            show(entry)


def _write_line(entry: LoggedEvent, began_at: int) -> None:
    click.echo(event_line(entry, began_at), err=True)


async def _draw(link: Link, run: RunRecord) -> None:
    """Redraw the timeline at short intervals: entries are added, and open spans grow."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False, emoji=False)
    clock = await _EngineClock.of(link)
    events: list[Event] = []

    def picture() -> RenderableType:
        spans = read_spans(events, None)[-_rows(console) :]
        return timeline(spans, run.created_at, None, clock.now())

    with Live(console=console, auto_refresh=False, get_renderable=picture) as live:
        follow = _follow(link, run.run_id, lambda entry: events.append(entry.event))
        await _refreshing(follow, live)


class _EngineClock:
    """Tells the database's time without asking it again."""

    def __init__(self, now: int) -> None:
        self._now, self._began = now, time.monotonic()

    @classmethod
    async def of(cls, link: Link) -> Self:
        return cls(await link.store.now())

    def now(self) -> int:
        return self._now + int((time.monotonic() - self._began) * 1e6)


async def _refreshing(work: Coroutine[None, None, None], live: Live) -> None:
    """Do the work, and draw again and again until it is done."""
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_REDRAW_SECONDS)
            live.refresh()
        await task
    finally:
        task.cancel()


async def _watch_steps(link: Link, run: RunRecord) -> None:
    """Show the steps of a flow's run: drawn at each change, or a line for each change."""
    if sys.stderr.isatty():
        await _draw_steps(link, run.run_id)
        return
    lines = StepLines(run.created_at)
    async with aclosing(link.client.runs.watch_steps(run.run_id)) as changes:
        async for steps in changes:
            for line in lines.changed(steps, await link.store.now()):
                click.echo(line, err=True)


async def _draw_steps(link: Link, run_id: UUID) -> None:
    """Draw the graph of steps, again at short intervals: what runs gets longer."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False, emoji=False)
    clock = await _EngineClock.of(link)
    seen: list[StepProgress] = []

    def picture() -> RenderableType:
        return steps_table(seen, clock.now(), most=_rows(console))

    async def watch() -> None:
        async with aclosing(link.client.runs.watch_steps(run_id)) as changes:
            async for steps in changes:
                seen[:] = steps

    with Live(console=console, auto_refresh=False, get_renderable=picture) as live:
        await _refreshing(watch(), live)


def _rows(console: Console) -> int:
    return max(3, console.height - 4)


def report_end(settings: Settings, run: RunRecord) -> int:
    """Write how a run ended, its output to stdout; return the exit code for it."""
    if settings.json:
        write_json(run_object(run))
    else:
        took = length((run.completed_at or run.created_at) - run.created_at)
        error = error_text(read_json(run.error))
        state = run.state.replace("_", " ")
        click.echo(f"{state} after {took}" + (f": {error}" if error else ""), err=True)
        if run.status == "completed":
            click.echo(run.output or "null")
    return exits.OK if run.status == "completed" else exits.FAILED
