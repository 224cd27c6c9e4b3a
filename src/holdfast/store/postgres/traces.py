"""Traces: ends of runs whose spans are to be written."""

from __future__ import annotations

from uuid import UUID

from holdfast.store.postgres.calls import Call, only_value
from holdfast.store.postgres.database import Part


class PostgresTraces(Part):
    take_ends: Call[list[UUID]] = only_value()
