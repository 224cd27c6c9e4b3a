"""The part of the port for large payloads: whose objects there are outside, and who needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.objects import Objects
from holdfast.store.port.readable import readable
from holdfast.types import FailingPut, UnneededPayloads


class LargePayloadStore(Protocol):
    """Knows which runs have payloads outside, so that these go with the last run that uses them.

    The store itself passes references from run to run: with an end of a child, a fork, the input
    of a step that is a run.
    """

    @readable
    def objects_at(self, url: str) -> Objects:
        """Return the objects at a URL. A store in memory has them in memory, whatever the URL.

        Raises ConfigurationError as `open_objects` does.
        """
        ...

    @readable
    async def own_payloads(
        self, url: str, owners: Sequence[UUID], users: Sequence[UUID | None]
    ) -> list[UUID]:
        """Note that runs are about to have objects at a URL; they need not exist yet.

        `users` are parallel to `owners`: the run that will refer to the objects, if it is another.
        Call this before the first object is put, and put and commit within an hour. Returns the
        owners whose objects from before are being deleted: wait a little and call again for these.
        """
        ...

    @readable
    async def note_put(self, url: str, owner: UUID, error: str | None) -> None:
        """Note that a payload of a run could not be put, and why; None: now it could."""
        ...

    @readable
    async def failing_puts(self, run_id: UUID) -> list[FailingPut]:
        """Return where payloads of a run could not be put in the last two minutes, by URL."""
        ...

    @readable
    async def due_payloads(
        self, *, limit: int = 100, lease_seconds: float = 600.0
    ) -> list[UnneededPayloads]:
        """Return owners whose objects nobody needs, to be deleted within the lease."""
        ...

    @readable
    async def forget_payloads(self, deleted: Sequence[UnneededPayloads]) -> None:
        """Forget owners whose objects were deleted."""
        ...
