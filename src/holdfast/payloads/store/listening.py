"""The ends of runs, waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from holdfast.codec import REFERENCE_MARK, is_sealed
from holdfast.payloads.store.part import PayloadPart
from holdfast.types import RunRecord


class PayloadListening(PayloadPart):
    """Decodes what listeners are told."""

    async def wait_for_end(self, topic: str, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        runs = await self._store.wait_for_end(topic, run_ids)
        return {run_id: self._open_record(run) for run_id, run in runs.items()}

    async def listen(
        self, topic: str, callback: Callable[[str], None]
    ) -> Callable[[], Awaitable[None]]:
        """Listen; see `ListenStore.listen`. The output of a run that ended is decoded."""

        def tell(payload: str) -> None:
            if is_sealed(payload):
                run_id, _, output = payload.partition(" ")
                is_outside = REFERENCE_MARK in output  # then the listener reads the run
                payload = run_id if is_outside else f"{run_id} {self.payloads.open(output)}"
            callback(payload)

        return await self._store.listen(topic, tell)
