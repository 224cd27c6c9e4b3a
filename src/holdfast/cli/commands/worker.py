"""`holdfast worker` and `holdfast workers`: run an app, and list the workers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from holdfast.cli import exits
from holdfast.cli.answers import Answer
from holdfast.cli.framework import Group, command, option
from holdfast.cli.inputs import (
    app_argument,
    duration,
    log_level_option,
    process_count,
    queue_option,
    replace_flows_option,
)
from holdfast.cli.render.console import console, folding, numbers, plain, table, whole
from holdfast.cli.render.hints import with_database
from holdfast.cli.settings import Settings, settings_of
from holdfast.insight.wording import ago, length

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.cli.connecting import Link
    from holdfast.types import ThreadUse, WorkerInfo
    from holdfast.worker import SweepLimits, WorkerOptions

_REDIS: Final = {None: "", True: "yes", False: "away"}


@command(
    "worker",
    examples=(
        "holdfast worker shop:app",
        "holdfast worker shop:app --queue gpu --concurrency 4",
        "holdfast worker shop:app --processes 4 --grace 2m --log-json",
        "holdfast worker shop:app --once --max-duration 50s      from cron, each minute",
    ),
)
@app_argument
@queue_option
@option(
    "--concurrency",
    "How many runs and activities it executes at the same time.",
    type=click.IntRange(1),
    default=200,
)
@option(
    "--threads",
    "How many steps and activities that are plain functions it executes at the same time.",
    type=click.IntRange(1),
    default=32,
)
@option(
    "--transaction-connections COUNT",
    "How many connections of each kind transactions have at most, in each process.",
    type=click.IntRange(1),
    default=10,
)
@option(
    "--grace TIME",
    "How long running steps and activities may continue after SIGTERM: 30s, 2m.",
    type=duration,
    default="30s",
    show_default="30s; with --once a fifth of --max-duration, at most 10s",
)
@option(
    "--processes COUNT",
    "How many worker processes, of several databases for each; or auto for one on each "
    "processor that it may use. A process that crashes is replaced.",
    type=process_count,
    default="1",
)
@option(
    "--check", "Replay each run whenever it wakes, and warn about code that is not deterministic."
)
@option("--once", "Do what is due, say what was done and what remains, and exit: for cron.")
@option(
    "--max-duration TIME",
    "With --once: exit within this time, and give back what has not ended by then.",
    type=duration,
    default="1m",
)
@option(
    "--max-runs", "With --once: work on this many different runs at most.", type=click.IntRange(1)
)
@option(
    "--metrics HOST:PORT",
    "Show metrics for Prometheus at this address; of several processes each at its own port, "
    "from PORT on.",
)
@replace_flows_option
@option("--run-logs", "Keep with each run what its code logs: holdfast runs logs.")
@option("--log-json", "Write the log as one JSON object a line.")
@log_level_option
@option("--shard", type=click.IntRange(0), hidden=True)
@click.pass_context
def worker(
    context: click.Context,
    app_reference: str,
    queues: tuple[str, ...],
    concurrency: int,
    threads: int,
    transaction_connections: int,
    grace: float,
    processes: int,
    check: bool,
    once: bool,
    max_duration: float,
    max_runs: int | None,
    metrics: str | None,
    replace_flows: bool,
    run_logs: bool,
    log_json: bool,
    log_level: str,
    shard: int | None,
) -> None:
    """Run the workflows, flows and activities of an app.

    MODULE:APP is a module and the name of the App in it, or a file: shop:app, src/shop.py:app,
    or shop.py if the file has only one App.

    After SIGTERM or Ctrl-C the worker starts nothing new, waits for running steps and activities
    for the grace period, and gives the rest back, so that another worker can continue at once. A
    second signal ends the grace period. The exit code is 0 after SIGTERM, 130 after Ctrl-C.

    With several databases it keeps a process for each of them. One that is away or spare stops no
    other: its worker begins when it is there.

    With --once it is for hosts without a worker: it does what is due within a limited time, writes
    what it did to stdout, and exits. Schedules, time-outs and maintenance are among what is due.
    """
    from holdfast.database.resolve import names_several

    exits.end_at_sigterm(context)
    settings = settings_of(context)
    several = shard is None and names_several(settings.database, settings.data)
    _check_once(context, once=once, processes=processes, metrics=metrics, several=several)
    from holdfast.cli.process.logs import configure
    from holdfast.worker import SweepLimits, WorkerOptions

    configure(as_json=log_json, debug=settings.debug, level=log_level)
    if processes > 1 or several:
        arguments = ["worker", app_reference, "--concurrency", str(concurrency)]
        arguments += ["--threads", str(threads), "--grace", str(grace)]
        arguments += ["--transaction-connections", str(transaction_connections)]
        arguments += [part for queue in queues for part in ("--queue", queue)]
        arguments += ["--check"] if check else []
        arguments += ["--replace-flows"] if replace_flows else []
        arguments += ["--run-logs"] if run_logs else []
        arguments += ["--log-level", log_level, *(["--log-json"] if log_json else [])]
        context.exit(_supervise(settings, arguments, processes, grace, metrics))
    options = WorkerOptions(
        queues=queues,
        concurrency=concurrency,
        threads=threads,
        transaction_connections=transaction_connections,
        grace_seconds=grace,
        check="warn" if check else "no",
        replace_flows=replace_flows,
        run_logs=run_logs,
    )
    limits = None
    if once:
        chosen = context.get_parameter_source("grace") is ParameterSource.DEFAULT
        limits = SweepLimits.read(max_runs, max_duration, None if chosen else grace)
    context.exit(_work(settings, app_reference, options, limits, metrics, shard))


def _check_once(
    context: click.Context, *, once: bool, processes: int, metrics: str | None, several: bool
) -> None:
    """Refuse options that do not go together."""
    if once and several:
        raise click.UsageError("--once is for one database, and several are named")
    if once and metrics is not None:
        raise click.UsageError(
            "--metrics is for a worker that stays: a sweep ends before it is asked"
        )
    if once and processes > 1:
        raise click.UsageError("--once is for one process: leave --processes out")
    for name in ("max_duration", "max_runs"):
        given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
        if given and not once:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option} is for --once: a worker runs until it is stopped")


def _work(
    settings: Settings,
    app_reference: str,
    options: WorkerOptions,
    limits: SweepLimits | None,
    metrics: str | None,
    shard: int | None,
) -> int:
    from holdfast.cli.connecting import checked_database, find_database
    from holdfast.cli.process.interpreter import end_despite_threads
    from holdfast.cli.process.loading import AppReference
    from holdfast.cli.process.once import work_once
    from holdfast.cli.process.worker import serve

    reference = AppReference.parse(app_reference)
    app = reference.load()
    # A shard's own database may be away, and is waited for.
    with checked_database(settings) if shard is None else find_database(settings) as database:
        # The origin tells apart the projects of one person on an embedded database. On a server
        # the processes of one app run in many places.
        origin = None if database.server is None else reference.origin
        if limits is None:
            code = serve(app, database, settings.schema, options, origin, metrics, shard)
        else:
            code = work_once(app, database, settings, limits, options, origin)
    end_despite_threads(code)
    return code


def _supervise(
    settings: Settings, arguments: list[str], processes: int, grace: float, metrics: str | None
) -> int:
    import asyncio

    from holdfast.cli.connecting import checked_database
    from holdfast.cli.process.supervising import StartWorker, Supervisor, TellOfCrash, oversee
    from holdfast.telemetry.listener import address_of

    if metrics is not None:
        address_of(metrics, processes - 1)  # a wrong one is refused before a process starts

    def make(start: StartWorker, crashed: TellOfCrash) -> Supervisor:
        click.echo(f"supervisor {os.getpid()} keeps {count} worker processes{each}", err=True)
        return Supervisor(start, crashed, count, grace)

    def numbered(place: int) -> list[str]:
        shard = ["--shard", str(place % shards)] if database.shards else []
        return shard + ([] if metrics is None else ["--metrics", address_of(metrics, place)])

    with checked_database(settings) as database:
        shards = len(database.parts)
        count = processes * shards
        each = f", {processes} for each of {shards} databases" if database.shards else ""
        if metrics is not None:
            address_of(metrics, count - 1)
        return asyncio.run(oversee(settings, database, arguments, make, numbered=numbered))


@click.group(
    "workers",
    cls=Group,
    invoke_without_command=True,
    sources={"list": "holdfast.cli.commands.worker:list_workers"},
    examples=("holdfast workers", "holdfast workers --json | jq '.[].queues'"),
)
@click.pass_context
def workers(context: click.Context) -> None:
    """List the workers that are signed on."""
    if context.invoked_subcommand is None:
        context.invoke(list_workers)


@command(
    "list", examples=("holdfast workers list", "holdfast workers list --json | jq '.[].queues'")
)
async def list_workers(link: Link) -> Answer:
    """List the workers that are signed on.

    Each line says which queues a worker serves, how many of its threads for plain functions are in
    use, when it last sent a heartbeat, and, if one uses Redis, if that tells it of new work now.
    With several databases it says which shard a worker serves, with pinned workflows its build.
    Below is what the workers execute.
    """
    found, now = await link.store.list_workers(), await link.store.now()
    none = f"no worker is signed on in {link.database}; `holdfast worker MODULE:APP` starts one"
    objects = [plain(each) for each in found]
    return Answer(objects, lambda: _write(found, now), none=with_database(none))


def _write(workers: list[WorkerInfo], now: int) -> None:
    """Write a line for each worker, and below what they execute: once for those of one code."""
    from rich.text import Text

    screen = console()
    screen.print(_table(workers, now))
    of_code: dict[tuple[str, ...], list[str]] = {}
    for each in workers:
        of_code.setdefault(each.serves, []).append(each.worker_id)
    for serves, ids in of_code.items():
        who = "all execute" if len(of_code) == 1 < len(ids) else f"{', '.join(ids)}:"
        screen.print(Text(f"\n{who} {', '.join(serves) or 'nothing'}"))


def _table(workers: list[WorkerInfo], now: int) -> Table:
    with_shards = any(each.shard is not None for each in workers)
    with_builds = any(each.builds for each in workers)
    with_redis = any(each.hints is not None for each in workers)
    names = ("worker", *(["shard"] if with_shards else []), "queues")
    names += ("build",) if with_builds else ()
    counts = numbers("runs", "threads", "up", "heard")
    shown = table(folding(*names), counts, whole("redis") if with_redis else [])
    for each in workers:
        shown.add_row(
            each.worker_id,
            *([str(each.shard)] if with_shards else []),
            ", ".join(each.queues),
            *([", ".join(each.builds)] if with_builds else []),
            f"≤ {each.concurrency}",
            _threads(each.threads),
            length(now - each.started_at),
            ago(each.heard_at, now),
            *([_REDIS[each.hints]] if with_redis else []),
        )
    return shown


def _threads(use: ThreadUse | None) -> str:
    """Return how many threads of a worker are in use: `3/32`, or `8/8, 5 wait`."""
    if use is None:
        return ""
    return f"{use.taken}/{use.size}" + (f", {use.waiting} wait" if use.waiting else "")
