"""The table of all operations: one line for each part of it.

Each part is a module of the API, whose `OPERATIONS` has a row for each operation.
"""

from __future__ import annotations

from typing import Final

from holdfast.server.api import (
    activities,
    alerts,
    approvals,
    archive,
    attach,
    attributes,
    builds,
    bulk,
    control,
    explaining,
    flows,
    forks,
    limits,
    logs,
    message_queues,
    messages,
    run_logs,
    runs,
    schedules,
    served,
    single_messages,
    stats,
    streams,
    topics,
    webhooks,
)
from holdfast.server.operations import Operation

OPERATIONS: Final[tuple[Operation, ...]] = (
    *runs.OPERATIONS,
    *control.OPERATIONS,
    *attributes.OPERATIONS,
    *messages.OPERATIONS,
    *attach.OPERATIONS,
    *logs.OPERATIONS,
    *streams.OPERATIONS,
    *run_logs.OPERATIONS,
    *explaining.OPERATIONS,
    *approvals.OPERATIONS,
    *activities.OPERATIONS,
    *forks.OPERATIONS,
    *bulk.OPERATIONS,
    *served.OPERATIONS,
    *stats.OPERATIONS,
    *flows.OPERATIONS,
    *schedules.OPERATIONS,
    *limits.OPERATIONS,
    *alerts.OPERATIONS,
    *builds.OPERATIONS,
    *archive.OPERATIONS,
    *message_queues.OPERATIONS,
    *single_messages.OPERATIONS,
    *topics.OPERATIONS,
    *webhooks.OPERATIONS,
)


def operations(*, read_only: bool) -> tuple[Operation, ...]:
    """Return the operations of a server: those of a read-only one only read."""
    return tuple(each for each in OPERATIONS if each.level == "read" or not read_only)
