"""What a transaction leaves for other shards."""

from __future__ import annotations

from uuid import uuid4

from msgspec.structs import replace

from holdfast.store.memory.tables import Tables
from holdfast.store.port import FORWARDS_TOPIC
from holdfast.types import Forward, NewEvent, NewSignal, Notice


def forward_signal(tables: Tables, signal: NewSignal) -> bool:
    """Keep a signal for the shard that has its run; return False for an engine alone."""
    if tables.shard is None:
        return False
    sent = replace(signal, signal_id=signal.signal_id or str(uuid4()))
    _keep(tables, Forward(0, signal=sent))
    return True


def forward_event(tables: Tables, event: NewEvent) -> list[Notice]:
    """Keep an event for all other shards, unless it came from one of them."""
    state = tables.shard
    if state is None or event.forwarded:
        return []
    for number in range(state.count):
        if number != state.number:
            _keep(tables, Forward(0, event=event, shard=number))
    return [Notice(FORWARDS_TOPIC, "")]


def _keep(tables: Tables, forward: Forward) -> None:
    tables.forwarded += 1
    tables.forwards.append(replace(forward, forward_id=tables.forwarded))
