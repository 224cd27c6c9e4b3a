"""Attributes and tags of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from holdfast.events import read_attributes_set
from holdfast.store.memory.chains import newest
from holdfast.store.memory.database import Part
from holdfast.store.memory.payloads import checked
from holdfast.store.memory.tables import Tables
from holdfast.types import AttributeValue, Event, Notice, RunRecord
from holdfast.values.attributes import attribute_text, check_changes, check_size
from holdfast.values.texts import check_text


class MemoryAttributes(Part):
    async def set_attributes(
        self, run_id: UUID, attributes: Mapping[str, AttributeValue | None]
    ) -> dict[str, AttributeValue] | None:
        async with self._transaction() as (tables, _):
            changes = checked(check_changes, attributes)
            row = tables.runs.get(newest(tables, run_id))
            if row is None:
                return None
            changed = _changed(row.new.attributes, changes)
            if any(value is not None for value in changes.values()):
                check_size(changed)
            row.new = msgspec.structs.replace(row.new, attributes=changed)
            return changed

    async def set_tags(
        self,
        run_id: UUID,
        tags: Sequence[str] | None,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
    ) -> list[str] | None:
        async with self._transaction() as (tables, _):
            for tag in (*(tags or ()), *add, *remove):
                check_text("tag", tag)
            row = tables.runs.get(newest(tables, run_id))
            if row is None:
                return None
            kept = dict.fromkeys([*(row.new.tags if tags is None else tags), *add])
            left = tuple(tag for tag in kept if tag not in set(remove))
            row.new = msgspec.structs.replace(row.new, tags=left)
            return list(left)


def carry_out(tables: Tables, _: int, run_id: UUID, event: Event) -> list[Notice]:
    """Carry out AttributesSet: set and remove attributes of the run that has written it."""
    row = tables.runs[run_id]
    command = read_attributes_set(event.details or "")
    changed = _changed(row.new.attributes, command.attributes)
    row.new = msgspec.structs.replace(row.new, attributes=changed)
    return []


def has_all(run: RunRecord, wanted: Mapping[str, AttributeValue]) -> bool:
    """Return True if a run has all of these attributes, compared by their texts."""
    return all(
        name in run.attributes and attribute_text(run.attributes[name]) == attribute_text(value)
        for name, value in wanted.items()
    )


def _changed(
    known: Mapping[str, AttributeValue], changes: Mapping[str, AttributeValue | None]
) -> dict[str, AttributeValue]:
    merged = sorted({**known, **changes}.items())
    return {name: value for name, value in merged if value is not None}
