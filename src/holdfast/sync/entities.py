"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from typing import TypeVar, cast

from holdfast.client.entities import Entities
from holdfast.sync.base import SyncGroup
from holdfast.values.durations import Duration

E = TypeVar("E")


class SyncEntities(SyncGroup[Entities]):
    """Entities by their class and their key; `client.entity` calls their methods."""

    def get(self, cls: type[E], key: str) -> E:
        """Return a copy of an entity as its last change has left it, without waking it.

        For a key that was never called, it is the object as the first call would find it. Raises
        InvalidInput for a state that does not fit the class.

        ```python
        cart = client.entities.get(Cart, "ann")
        print(cart.items)
        ```
        """
        return cast("E", self._call(self._target.get, cls, key))

    def delete(
        self,
        cls: type[object],
        key: str,
        reason: str | None = None,
        *,
        timeout: Duration | None = None,
    ) -> bool:
        """Delete an entity, and wait for its end; return False if there is none.

        A change that is being made is cancelled. The next call begins with a new object, as do
        calls that wait. The last state can be read in its run until the retention is over. Raises
        ResultTimeout if no worker has ended it after `timeout`: it is deleted later.

        ```python
        client.entities.delete(Cart, "ann", "the order was placed")
        ```
        """
        return self._call(self._target.delete, cls, key, reason, timeout=timeout)
