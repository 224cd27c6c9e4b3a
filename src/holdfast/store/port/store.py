"""The store: all its parts, and the connection and the clock that they share."""

from __future__ import annotations

from typing import Protocol

from holdfast.store.port.activities import ActivityStore
from holdfast.store.port.alerts import AlertStore
from holdfast.store.port.approvals import ApprovalStore
from holdfast.store.port.apps import AppStore
from holdfast.store.port.archives import ArchiveStore
from holdfast.store.port.attributes import AttributeStore
from holdfast.store.port.builds import BuildStore
from holdfast.store.port.claims import ClaimStore
from holdfast.store.port.commits import CommitStore
from holdfast.store.port.control import ControlStore
from holdfast.store.port.deliveries import DeliveryStore
from holdfast.store.port.external import ExternalStore
from holdfast.store.port.flows import FlowStore
from holdfast.store.port.forks import ForkStore
from holdfast.store.port.large_payloads import LargePayloadStore
from holdfast.store.port.limits import LimitStore
from holdfast.store.port.listening import ListenStore
from holdfast.store.port.messages import MessageStore
from holdfast.store.port.queries import QueryStore
from holdfast.store.port.readable import readable
from holdfast.store.port.reads import ReadStore
from holdfast.store.port.retention import RetentionStore
from holdfast.store.port.schedules import ScheduleStore
from holdfast.store.port.shards import ShardStore
from holdfast.store.port.start_rules import StartRuleStore
from holdfast.store.port.starts import StartStore
from holdfast.store.port.stats import StatsStore
from holdfast.store.port.streams import StreamStore
from holdfast.store.port.topics import TopicStore
from holdfast.store.port.traces import TraceStore
from holdfast.store.port.transactions import TransactionStore
from holdfast.store.port.webhooks import WebhookStore
from holdfast.store.port.workers import WorkerStore


class Store(
    StartStore,
    StartRuleStore,
    ClaimStore,
    CommitStore,
    ActivityStore,
    ExternalStore,
    ApprovalStore,
    WebhookStore,
    AttributeStore,
    ControlStore,
    LimitStore,
    ForkStore,
    FlowStore,
    ScheduleStore,
    TopicStore,
    AlertStore,
    BuildStore,
    MessageStore,
    DeliveryStore,
    WorkerStore,
    StreamStore,
    StatsStore,
    ShardStore,
    TraceStore,
    TransactionStore,
    AppStore,
    QueryStore,
    ReadStore,
    RetentionStore,
    ArchiveStore,
    LargePayloadStore,
    ListenStore,
    Protocol,
):
    """All that the engine asks of a database."""

    @property
    def schema(self) -> str | None:
        """The schema of a database that it is; None if it is not in a database."""
        ...

    @readable
    async def open(self) -> None:
        """Connect. Idempotent."""
        ...

    @readable
    async def close(self) -> None:
        """Close every connection. Idempotent."""
        ...

    @readable
    async def now(self) -> int:
        """Return engine time, microseconds since 1970 UTC."""
        ...
