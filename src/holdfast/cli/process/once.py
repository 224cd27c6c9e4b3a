"""`holdfast worker --once`: one sweep in this process."""

from __future__ import annotations

import click

from holdfast.cli.process.interpreter import runner_that_leaves_threads
from holdfast.cli.process.supervising import StopSignals
from holdfast.cli.process.worker import WorkerProcess
from holdfast.cli.render.console import plain, write_json
from holdfast.cli.settings import Settings
from holdfast.database.resolve import Database
from holdfast.definitions.app import App
from holdfast.sweeping import opened_sweep
from holdfast.worker import SweepLimits, SweepResult, WorkerOptions


def work_once(
    app: App,
    database: Database,
    settings: Settings,
    limits: SweepLimits,
    options: WorkerOptions,
    origin: str | None,
) -> int:
    """Do what is due, write what was done, and return the exit code."""
    with runner_that_leaves_threads() as runner:
        done, code = runner.run(_sweep(app, database, settings.schema, limits, options, origin))
    if settings.json:
        write_json(plain(done))
    else:
        click.echo(_in_words(done))
    return code


async def _sweep(
    app: App,
    database: Database,
    schema: str,
    limits: SweepLimits,
    options: WorkerOptions,
    origin: str | None,
) -> tuple[SweepResult, int]:
    process = WorkerProcess()
    async with opened_sweep(app, database, schema, limits, options, origin, process) as sweep:
        signals = process.signals = StopSignals(sweep.end_early)
        try:
            return await sweep.run(), signals.exit_code()
        finally:
            signals.restore()


def _in_words(done: SweepResult) -> str:
    counts = {
        "run": done.runs,
        "turn": done.turns,
        "step": done.steps + done.flow_steps,
        "timer": done.timers,
        "activity": done.activities,
        "message": done.messages,
    }
    did = [_count(number, what) for what, number in counts.items() if number]
    parts = [f"{', '.join(did) or 'nothing was due'} in {done.seconds:.1f} s"]
    if done.runs:
        parts.append(f"{_count(done.ended, 'run')} ended")
    if done.interrupted:
        parts.append(f"{done.interrupted} interrupted: the time was over")
    if done.remaining:
        parts.append("more is due now")
    elif done.next_due is not None:
        parts.append(f"the next is due at {done.next_due:%Y-%m-%d %H:%M:%S} UTC")
    return "; ".join(parts)


def _count(number: int, what: str) -> str:
    many = "activities" if what == "activity" else f"{what}s"
    return f"{number} {what if number == 1 else many}"
