"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from typing import TypeVar, cast

from holdfast.client.entities import Entities
from holdfast.sync.base import SyncGroup
from holdfast.values.durations import Duration

E = TypeVar("E")


class SyncEntities(SyncGroup[Entities], of=Entities):
    """Entities by their class and their key; `client.entity` calls their methods."""

    def get(self, cls: type[E], key: str) -> E:
        """Return a copy of an entity as its last change has left it, without waking it."""
        return cast("E", self._call(self._target.get, cls, key))

    def delete(
        self,
        cls: type[object],
        key: str,
        reason: str | None = None,
        *,
        timeout: Duration | None = None,
    ) -> bool:
        """Delete an entity, and wait for its end; return False if there is none."""
        return self._call(self._target.delete, cls, key, reason, timeout=timeout)
