"""Activities, which end with a result."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from holdfast.payloads.outgoing import spread
from holdfast.payloads.store.part import PayloadPart
from holdfast.types import ActivitiesEnded, ActivityEnd, OpenActivity


class PayloadActivities(PayloadPart):
    """Encodes results of activities."""

    async def end_activities(
        self, worker_id: str | None, ends: Sequence[ActivityEnd]
    ) -> ActivitiesEnded:
        """Report activities; see `ActivityStore.end_activities`.

        An end is `busy` while the object of its result is not there yet: to be reported again.
        """
        outgoing = self._outgoing()
        sealed = [
            self._sealed_error(
                self._sealed(
                    outgoing,
                    self._hidden(end),
                    end.run_id,
                    result=f"the result of activity {end.key}",
                )
            )
            for end in ends
        ]
        if worker_id is None:
            await outgoing.put()
        busy = await outgoing.missing([end.result for end in sealed])
        given = [end for end, is_busy in zip(sealed, busy, strict=True) if not is_busy]
        ended = await self._store.end_activities(worker_id, given)
        outcomes = spread(ended.outcomes, busy)
        return msgspec.structs.replace(ended, outcomes=outcomes)

    async def list_activities(self, run_id: UUID, *, limit: int = 100) -> list[OpenActivity]:
        found = await self._store.list_activities(run_id, limit=limit)
        return [self._open_reason(self._opened(each, "heartbeat")) for each in found]
