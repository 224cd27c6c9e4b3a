"""Chains of runs: each continued as the next."""

from __future__ import annotations

from uuid import UUID

import msgspec

from holdfast.store.memory import details
from holdfast.store.memory.rows import RunRow
from holdfast.store.memory.tables import Tables


class _Continued(msgspec.Struct, frozen=True):
    run_id: UUID


def newest(tables: Tables, run_id: UUID) -> UUID:
    """Return the last run of a chain of runs that continued as new."""
    while run_id in tables.runs and tables.runs[run_id].status == "continued":
        following = next_of(tables.runs[run_id])
        if following not in tables.runs:
            break
        run_id = following
    return run_id


def next_of(continued: RunRow) -> UUID:
    """Return the run that a run continued as."""
    return details.read(continued.output, _Continued).run_id
