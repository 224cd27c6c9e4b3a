"""The store in memory: all its parts over the same tables, and its clock."""

from __future__ import annotations

from typing import Self

from holdfast.store.memory.activities import MemoryActivities
from holdfast.store.memory.alerts import MemoryAlerts
from holdfast.store.memory.approvals import MemoryApprovals
from holdfast.store.memory.apps import MemoryApps
from holdfast.store.memory.archives import MemoryArchives
from holdfast.store.memory.attributes import MemoryAttributes
from holdfast.store.memory.builds import MemoryBuilds
from holdfast.store.memory.choosing import allowed_moments
from holdfast.store.memory.claims import MemoryClaims
from holdfast.store.memory.clock import Clock, VirtualClock, to_micros
from holdfast.store.memory.commits import MemoryCommits
from holdfast.store.memory.control import MemoryControl
from holdfast.store.memory.deliveries import MemoryDeliveries
from holdfast.store.memory.external import MemoryExternal
from holdfast.store.memory.flows.nesting import FlowNesting
from holdfast.store.memory.flows.part import MemoryFlows
from holdfast.store.memory.forks import MemoryForks
from holdfast.store.memory.large_payloads import MemoryLargePayloads
from holdfast.store.memory.limits import MemoryLimits
from holdfast.store.memory.listening import MemoryListening
from holdfast.store.memory.messages import MemoryMessages
from holdfast.store.memory.one_message import MemoryOneMessage
from holdfast.store.memory.queries import MemoryQueries
from holdfast.store.memory.queue_looks import MemoryQueueLooks
from holdfast.store.memory.retention import MemoryRetention
from holdfast.store.memory.rows import NEVER
from holdfast.store.memory.schedules.part import MemorySchedules
from holdfast.store.memory.shards import MemoryShards
from holdfast.store.memory.start_rules import MemoryStartRules
from holdfast.store.memory.starts import MemoryStarts
from holdfast.store.memory.stats import MemoryStats
from holdfast.store.memory.streams import MemoryStreams
from holdfast.store.memory.topics import MemoryTopics
from holdfast.store.memory.traces import MemoryTraces
from holdfast.store.memory.transactions import MemoryTransactions
from holdfast.store.memory.webhooks import MemoryWebhooks
from holdfast.store.memory.workers import MemoryWorkers
from holdfast.store.port import WORK_TOPIC, messages_topic
from holdfast.types import Notice, ReadCheck


class MemoryStore(
    MemoryStarts,
    MemoryStartRules,
    MemoryClaims,
    MemoryCommits,
    MemoryActivities,
    MemoryExternal,
    MemoryApprovals,
    MemoryWebhooks,
    MemoryAttributes,
    MemoryControl,
    MemoryLimits,
    MemoryForks,
    MemoryFlows,
    MemorySchedules,
    MemoryTopics,
    MemoryAlerts,
    MemoryBuilds,
    MemoryMessages,
    MemoryDeliveries,
    MemoryQueueLooks,
    MemoryOneMessage,
    MemoryWorkers,
    MemoryStreams,
    MemoryStats,
    MemoryShards,
    MemoryTraces,
    MemoryTransactions,
    MemoryApps,
    MemoryQueries,
    MemoryRetention,
    MemoryArchives,
    MemoryLargePayloads,
    MemoryListening,
):
    """A `Store` in this process's memory.

    Time is virtual unless a `clock` is given: it stands still until `advance` or `advance_to`
    moves it, which wakes the workers that listen. To let an idle system's time pass, advance to
    `next_due_at`.

    Any thread may call it.
    """

    schema = None  # it is not in a database

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(VirtualClock() if clock is None else clock, FlowNesting())

    def time(self) -> int:
        """Return engine time, as `now` does, without waiting for it."""
        return self._clock()

    def advance(self, seconds: float) -> None:
        """Move virtual time on, and tell workers."""
        self.advance_to(self._clock() + to_micros(seconds))

    def advance_to(self, at: int) -> None:
        """Move virtual time on to a moment, and tell workers."""
        if not isinstance(self._clock, VirtualClock):
            raise TypeError("this store runs on a clock of its own: move that one")
        with self._lock:
            self._clock.advance_to(at)
            queues = sorted({task.queue for task in self._tables.tasks.values()})
            self._send(Notice(WORK_TOPIC, queue) for queue in queues)
            names = sorted(self._tables.queues.rows)
            self._send(Notice(messages_topic(name), name) for name in names)

    def next_due_at(self, *, schedules: bool = True) -> int | None:
        """Return the next moment at which something comes due, None for never.

        Without `schedules`, their ticks do not count: they may never end.
        """
        with self._lock:
            now = self._clock()
            tables = self._tables
            free = (t for t in tables.tasks.values() if t.worker is None)
            moments = [task.visible_at for task in free if not tables.is_paused(task)]
            moments += [at for at, _ in tables.deadlines()]
            moments += [at for at, _, _ in tables.activity_deadlines()]
            moments += allowed_moments(tables, now)
            moments += [row.visible_at for row in tables.deliveries.values()]
            if schedules:
                moments += [row.look_at for row in tables.schedules.values()]
            moments += [at for row in tables.queues.rows.values() for at in row.moments()]
        next_at = min((at for at in moments if at > now), default=NEVER)
        return None if next_at >= NEVER else next_at

    @property
    def reads(self) -> Self:
        """This store: there is no replica of it."""
        return self

    async def fresh_reads(self) -> Self:
        """Return this store."""
        return self

    async def check_reads(self) -> ReadCheck | None:
        """Return None: there is nothing to look at."""
        return None

    async def open(self) -> None:
        """Do nothing: there is no connection."""

    async def close(self) -> None:
        """Stop calling listeners; what is stored stays readable."""
        with self._lock:
            self._listeners.clear()

    async def now(self) -> int:
        """Return engine time."""
        return self.time()
