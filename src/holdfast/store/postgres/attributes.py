"""Attributes and tags of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from holdfast.store.postgres.database import Part
from holdfast.store.postgres.rows import json_text
from holdfast.types import AttributeValue

_decode: Final = msgspec.json.Decoder(dict[str, AttributeValue]).decode


class PostgresAttributes(Part):
    async def set_attributes(
        self, run_id: UUID, attributes: Mapping[str, AttributeValue | None]
    ) -> dict[str, AttributeValue] | None:
        [found] = await self._database.row("set_attributes", run_id, json_text(attributes))
        return None if found is None else _decode(found)

    async def set_tags(
        self,
        run_id: UUID,
        tags: Sequence[str] | None,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
    ) -> list[str] | None:
        found: list[str] | None = await self._database.value(
            "set_tags",
            run_id,
            None if tags is None else json_text(tags),
            json_text(add) if add else None,
            json_text(remove) if remove else None,
        )
        return found


def read_attributes(text: str | None) -> dict[str, AttributeValue]:
    """Return attributes of a row; empty for none."""
    return {} if text is None else _decode(text)
