"""One worker process: run the workflows of an app until a signal stops it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from holdfast.cli import exits
from holdfast.cli.process.interpreter import runner_that_leaves_threads, skip_what_exists
from holdfast.cli.process.supervising import Starter, StopSignals, find_starter
from holdfast.database.keeping import kept_running
from holdfast.database.resolve import Database
from holdfast.definitions.app import App
from holdfast.store.opening import make_store, thread_store
from holdfast.tracing import worker_tracer
from holdfast.values.loggers import get_logger
from holdfast.worker import Worker, WorkerOptions
from holdfast.worker.shard import SHARD_CONNECTIONS, Shard, until_served
from holdfast.worker.watchdog import Process

if TYPE_CHECKING:
    from holdfast.telemetry.listener import MetricsListener
    from holdfast.telemetry.worker import WorkerMetrics
    from holdfast.worker.tracer import Tracer

logger = get_logger("holdfast.worker")


def serve(
    app: App,
    database: Database,
    schema: str,
    options: WorkerOptions,
    origin: str | None = None,
    metrics: str | None = None,
    shard: int | None = None,
) -> int:
    """Run a worker until it has drained; return the exit code. `metrics` is an address.

    Of several databases it serves the one with the number `shard`.
    """
    shown = None if metrics is None else _metrics_at(metrics)
    tracer = worker_tracer(app.name)
    skip_what_exists()
    with runner_that_leaves_threads() as runner:
        return runner.run(_serve(app, database, schema, options, origin, shown, tracer, shard))


def _metrics_at(address: str) -> tuple[WorkerMetrics, MetricsListener]:
    """Listen for scrapes. Raises ConfigurationError."""
    from holdfast.telemetry.listener import MetricsListener, parse_address
    from holdfast.telemetry.worker import WorkerMetrics

    metrics = WorkerMetrics()
    listener = MetricsListener(*parse_address(address), metrics.families)
    listener.start()
    return metrics, listener


async def _serve(
    app: App,
    database: Database,
    schema: str,
    options: WorkerOptions,
    origin: str | None,
    shown: tuple[WorkerMetrics, MetricsListener] | None,
    tracer: Tracer | None,
    number: int | None,
) -> int:
    shard = None if number is None else _shard_of(database, number, schema)
    database = database if number is None else database.shard(number)
    store = make_store(database, schema)
    worker = Worker(
        app,
        store,
        options,
        process=(process := WorkerProcess()),
        heartbeat_store=partial(thread_store, database, schema),
        origin=origin,
        tracer=tracer,
        observers=() if shown is None else (shown[0],),
        shard=shard,
    )
    if process.supervisor is not None:
        process.supervisor.tell(worker.worker_id)
    if shown is not None:
        shown[0].watch(worker)
    stop = asyncio.Event()
    signals = process.signals = _on_signals(worker, stop, options.grace_seconds)
    try:
        async with kept_running(database):
            if number is not None:
                async with _parent_watched(process.supervisor, stop):
                    if not await _unless_stopped(until_served(store, number, worker.declare), stop):
                        return signals.exit_code()
            if not await _started(worker, stop):
                return signals.exit_code()
            _say_ready(worker, app, database)
            if shown is not None:
                logger.info("metrics of worker %s: %s", worker.worker_id, shown[1].url)
            async with _parent_watched(process.supervisor, stop):
                await stop.wait()
            logger.info(
                "worker %s stops: %d run(s) active%s",
                worker.worker_id,
                worker.active,
                f", whose steps may take {options.grace_seconds:g} s to end; a second signal "
                "ends it at once"
                if worker.active
                else "",
            )
            await worker.stop()
            logger.info("worker %s has stopped", worker.worker_id)
            return signals.exit_code()
    finally:
        if shown is not None:
            shown[1].stop()
        await store.close()
        signals.restore()


def _shard_of(database: Database, number: int, schema: str) -> Shard:
    return Shard(number, make_store(database, schema, SHARD_CONNECTIONS))


async def _started(worker: Worker, stop: asyncio.Event) -> bool:
    """Start the worker; return False if it was asked to stop before the database had answered."""
    if await _unless_stopped(worker.start(), stop):
        return True
    await worker.stop()
    return False


async def _unless_stopped(work: Coroutine[object, object, None], stop: asyncio.Event) -> bool:
    """Do something to its end; return False if it was cut off because of `stop`."""
    doing, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            await doing
            return True
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        return False
    finally:
        stopping.cancel()


class WorkerProcess(Process):
    """The process of `holdfast worker`, which can end although user code blocks it.

    `signals` are the stop signals that came, `supervisor` is the process that started it.
    """

    can_end = True

    def __init__(self) -> None:
        self.signals: StopSignals | None = None
        self.supervisor = find_starter()

    def end(self) -> None:
        """End at once, without clean-up: user code blocks the main thread."""
        signals = self.signals
        os._exit(exits.FAILED if signals is None else signals.exit_code(unasked=exits.FAILED))

    @property
    def orphaned(self) -> bool:
        """True if the supervisor that started this process is gone."""
        return self.supervisor is not None and os.getppid() != self.supervisor.pid


def _say_ready(worker: Worker, app: App, database: Database) -> None:
    info = worker.info
    served = [("queues", list(info.queues))]
    activities = [each for each in info.handlers if each.endswith("@0")]
    of_flows = {flow.shape.handler for flow in app.flows.values()}
    flows = [each for each in info.handlers if each in of_flows]
    others = {*activities, *flows}
    served += [("workflows", [each for each in info.handlers if each not in others])]
    served += [("flows", flows)]
    served += [("activities", [each[:-2] for each in activities])]
    served += [("consumers", [f"{each.name} of {each.queue}" for each in app.consumers.values()])]
    listed = ", ".join(f"{what} {', '.join(names)}" for what, names in served if names)
    redis = "" if database.connecting.redis_url is None else ", with Redis"
    logger.info("worker %s ready: %s; database: %s%s", info.worker_id, listed, database, redis)


def _on_signals(worker: Worker, stop: asyncio.Event, grace_seconds: float) -> StopSignals:
    """Drain on the first signal, end the grace period on the second."""
    heard = False

    def at_once() -> None:
        nonlocal heard
        worker.expect_stop(0 if heard else grace_seconds)
        heard = True

    def arrived() -> None:
        if stop.is_set():
            logger.warning("second signal: worker %s ends at once", worker.worker_id)
            worker.end_grace()
        stop.set()

    return StopSignals(arrived, at_once)


@asynccontextmanager
async def _parent_watched(supervisor: Starter | None, stop: asyncio.Event) -> AsyncGenerator[None]:
    """In the child of a supervisor, stop when the supervisor is gone, however it ended."""
    if supervisor is None:
        yield
        return
    loop, lifeline = asyncio.get_running_loop(), supervisor.lifeline

    def ended() -> None:  # nothing is ever written to it
        loop.remove_reader(lifeline)
        logger.warning("the process that started this worker is gone")
        stop.set()

    loop.add_reader(lifeline, ended)
    try:
        yield
    finally:
        loop.remove_reader(lifeline)
