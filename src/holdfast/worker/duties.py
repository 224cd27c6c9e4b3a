"""The services of a worker, made, signed on and started together: a new duty is one line here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.compiling import compile_flows
from holdfast.definitions.app import App
from holdfast.definitions.message_queues import dead_letters_first
from holdfast.errors import ConfigurationError, InvalidInput, QueueExists
from holdfast.retention import open_archive
from holdfast.types import WorkerInfo
from holdfast.values.loggers import get_logger
from holdfast.values.retention import sweeper_interval
from holdfast.worker.options import WorkerOptions
from holdfast.worker.services.alerts import Alerts
from holdfast.worker.services.app_sign_on import AppSignOn
from holdfast.worker.services.deadlines import Deadlines
from holdfast.worker.services.declaring import CodeAlerts, CodeSchedules, CodeSubscriptions
from holdfast.worker.services.deliverer import Deliverer
from holdfast.worker.services.forgotten import Forgotten
from holdfast.worker.services.reaper import Reaper
from holdfast.worker.services.scheduler import Scheduler
from holdfast.worker.services.service import Service, ServiceContext
from holdfast.worker.services.statistics import OldStatistics, OutsideEnds, Samples
from holdfast.worker.services.sweeper import Sweeper
from holdfast.worker.services.unserved import Unserved
from holdfast.worker.services.upkeep import FreedKeys, OldEvents, OldKeys, QueueUpkeep, UnusedLimits
from holdfast.worker.shard import Shard, is_home

if TYPE_CHECKING:
    from holdfast.worker.services.forwarder import Forwarder

logger = get_logger("holdfast.worker")


class Duties:
    """All services of a worker. Those that other parts of the worker call have names."""

    def __init__(
        self,
        context: ServiceContext,
        app: App,
        info: WorkerInfo,
        options: WorkerOptions,
        origin: str | None,
        shard: Shard | None = None,
    ) -> None:
        """`origin` says where the app's code is. Schedules and subscriptions are in shard 0 alone.

        Raises ConfigurationError for an interval of the sweeper that cannot be read.
        """
        named = is_home(shard)
        schedules = [each.new for each in app.schedules.values()] if named else []
        subscriptions = app.subscriptions if named else ()
        interval, counted = sweeper_interval(), context.observing.counted_ends
        self._context, self._replace_flows = context, options.replace_flows
        self._flows = tuple(app.flows.values())
        self._queues = dead_letters_first(app.message_queues) if named else ()
        around = None if shard is None else shard.store
        self._app_sign_on = AppSignOn(context, app, origin, around)
        self._code_schedules = CodeSchedules(context, app.name, schedules)
        self._code_alerts = CodeAlerts(context, app.name, app.alerts)
        self._code_subscriptions = CodeSubscriptions(context, app.name, subscriptions)
        self.deadlines: Final = Deadlines(context)
        self.scheduler: Final = Scheduler(context)
        self.deliverer: Final = Deliverer(context)
        self.forwarder: Final = None if shard is None else _forwarder(context, shard)
        self._services: Sequence[Service] = [
            Reaper(context, silent_seconds=options.silent_seconds),
            self.deadlines,
            self._app_sign_on,
            Forgotten(context, app, self.sign_on),
            Unserved(context, info.handlers),
            UnusedLimits(context),
            QueueUpkeep(context),
            self._code_schedules,
            self._code_subscriptions,
            self._code_alerts,
            Alerts(context, silent_seconds=options.silent_seconds),
            self.scheduler,
            self.deliverer,
            *([Sweeper(context, open_archive(app.archive), interval)] if interval else ()),
            FreedKeys(context),
            OldKeys(context),
            OldEvents(context),
            *([] if self.forwarder is None else [self.forwarder]),
            OldStatistics(context),
            Samples(context),
            *([OutsideEnds(context, app.name, counted)] if counted is not None else ()),
        ]

    def __iter__(self) -> Iterator[Service]:
        """Iterate over the services."""
        return iter(self._services)

    async def sign_on(self) -> None:
        """Give the database what the app's code declares: names, flows, queues, schedules and more.

        Raises ConfigurationError for what contradicts the database.
        """
        await self._app_sign_on.sign_on()
        await self._compile()
        await self._create_queues()
        await self._code_schedules.sign_on()
        await self._code_subscriptions.sign_on()
        await self._code_alerts.sign_on()

    async def _compile(self) -> None:
        store, notify, replace = self._context.store, self._context.notify, self._replace_flows
        for flow in await compile_flows(store, self._flows, notify, replace=replace):
            if flow.status == "replaced":
                logger.warning(
                    "flow %s@%d was replaced, and %d run(s) of it were terminated: %s",
                    flow.name,
                    flow.version,
                    flow.ended,
                    "; ".join(flow.differences),
                )

    async def _create_queues(self) -> None:
        for each in self._queues:
            try:
                if await self._context.store.create_queue(each):
                    logger.info("message queue %s is created", each.name)
            except QueueExists:
                logger.warning(
                    "message queue %s has other settings than the code declares: it stays as it "
                    "is, until `holdfast queue update %s` changes it",
                    each.name,
                    each.name,
                )
            except InvalidInput as error:
                raise ConfigurationError(f"app.message_queue({each.name!r}): {error}") from None

    async def start(self) -> None:
        """Let each service run now and from now on. Idempotent."""
        for service in self._services:
            await service.start()

    async def stop(self) -> None:
        """Stop all of them, also in the middle of a run. Idempotent."""
        await asyncio.gather(*(service.stop() for service in self._services))

    async def run_once(self) -> None:
        """Run every service once, now."""
        for service in self._services:
            await service.run_once()


def _forwarder(context: ServiceContext, shard: Shard) -> Forwarder:
    # Here, because it imports the store over several databases, and few workers have several.
    from holdfast.worker.services.forwarder import Forwarder

    return Forwarder(context, shard.members)
