"""The store port: what the engine asks of a database, one method for one SQL function.

Two stores implement it: `PostgresStore` and `MemoryStore`; one suite tests both. There is one
file a capability, and the same file in both stores; `Store` is all of them.

Every method is one transaction. A method that changes runs takes many of them, and is all or
nothing per run. Methods that wake a worker or a client return notices, except those that they
have sent; the caller passes them to `notify` *after* the method has returned, because a NOTIFY
inside each writing transaction would serialise commits.

After `TransientDatabaseError` and `DatabaseUnavailable` the caller may repeat the call.
`PayloadError` names a value that the database refuses.
"""

from __future__ import annotations

from holdfast.store.port.schedules import iterate_schedules
from holdfast.store.port.start_rules import refusal
from holdfast.store.port.store import Store
from holdfast.store.port.wakeups import (
    ACTIVITIES_TOPIC,
    DELIVERIES_TOPIC,
    FORWARDS_TOPIC,
    HINTED_TOPICS,
    SCHEDULES_TOPIC,
    STARTS_TOPIC,
    WORK_TOPIC,
    end_payload,
    messages_topic,
    read_end,
    stream_topic,
    worker_topic,
)

__all__ = [
    "ACTIVITIES_TOPIC",
    "DELIVERIES_TOPIC",
    "FORWARDS_TOPIC",
    "HINTED_TOPICS",
    "SCHEDULES_TOPIC",
    "STARTS_TOPIC",
    "WORK_TOPIC",
    "Store",
    "end_payload",
    "iterate_schedules",
    "messages_topic",
    "read_end",
    "refusal",
    "stream_topic",
    "worker_topic",
]
