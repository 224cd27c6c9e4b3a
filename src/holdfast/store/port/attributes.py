"""The part of the port for attributes and tags, which may change after a run was started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import AttributeValue


class AttributeStore(Protocol):
    """Changes what lists find runs by. No codec encodes it."""

    @readable
    async def set_attributes(
        self, run_id: UUID, attributes: Mapping[str, AttributeValue | None]
    ) -> dict[str, AttributeValue] | None:
        """Set attributes of a run, open or ended, and remove those that are None.

        If it continued as new, the last run of the chain is changed. Returns all that it has then;
        None if there is no such run. Raises InvalidInput for values that are not allowed, and for
        more than 4,096 bytes in all.
        """
        ...

    @readable
    async def set_tags(
        self,
        run_id: UUID,
        tags: Sequence[str] | None,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
    ) -> list[str] | None:
        """Change the tags of a run, as `set_attributes` changes attributes.

        `tags` replaces those that it has; None keeps them. `remove` comes before `add` in effect
        on the former tags: a tag of both is removed.
        """
        ...
