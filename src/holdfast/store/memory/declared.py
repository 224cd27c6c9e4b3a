"""What starts leave out, as the code of their workflows has declared it."""

from __future__ import annotations

import msgspec

from holdfast.store.memory.tables import Tables
from holdfast.types import DeclaredOptions, NewRun
from holdfast.values.retention import DEFAULT_RETENTION_SECONDS


def with_declared(tables: Tables, new: NewRun) -> NewRun:
    """Return a run with a queue, a priority and a retention, as the code has declared them.

    A start that has these three knows the code: if it has no timeout, there is none.
    """
    if None not in (new.queue, new.priority, new.retention_seconds):
        return new
    declared = tables.declared_options.get(new.name)
    if declared is None:
        declared = DeclaredOptions(new.name, 1, DEFAULT_RETENTION_SECONDS)
    kept, timeout = new.retention_seconds, new.timeout_seconds
    return msgspec.structs.replace(
        new,
        queue=new.queue or declared.queue,
        priority=declared.priority if new.priority is None else new.priority,
        timeout_seconds=declared.timeout_seconds if timeout is None else timeout,
        retention_seconds=declared.retention_seconds if kept is None else kept,
    )
