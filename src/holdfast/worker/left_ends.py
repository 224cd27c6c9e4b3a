"""What attempts of a transactional step have left beside its data, where the log may lack it."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from holdfast.definitions.steps import former_keys
from holdfast.errors import ConfigurationError
from holdfast.events import STEP_COMPLETED
from holdfast.runtime.code.steps import Call
from holdfast.store.port.transactions import LAST_LEASE, OpenTransaction, lease_of, result_key
from holdfast.types import Event

_ASKED: Final = 0  # the mark of an attempt that has asked the runs before: of no lease


class LeftEnds:
    """Finds the end of a call that an attempt before this one has left.

    Each method is called with a transaction at the place of the data.
    """

    def __init__(self, call: Call, began: int, since: int, lease_no: int, started_at: int) -> None:
        """`began` and `since` are those of `result_key`; `started_at` is when the attempt began."""
        self._call, self._began, self._since, self._at = call, began, since, started_at
        self.lease_no, self.number = lease_no, 0  # the number is that of the try
        self.key = result_key(call.key, began, since)

    @property
    def is_old(self) -> bool:
        """True if its run began before the log said that transactions begin."""
        return self._began < self._since

    async def find(self, transaction: OpenTransaction, *, apart: bool) -> Event | None:
        """Return what this run has left; see `OpenTransaction.find`."""
        left = await transaction.find(self._call.run_id, self.key, apart=apart)
        if (end := self._end(left, self.number)) is None and apart and self.lease_no > 1:
            end = await self._give_up_aliases(
                transaction, self._call.run_id, self._began, self.number
            )
        return end

    async def give_up(self, transaction: OpenTransaction) -> Event | None:
        """Return what this run has left; without it, let no earlier try commit any more."""
        left = await transaction.give_up(self._call.run_id, self.key, self.number)
        return self._end(left, self.number)

    async def close_origins(self, transaction: OpenTransaction) -> Event | None:
        """Return what a run has left that this one retries, and let it commit nothing any more.

        If there is none, a mark says so: neither this run nor its own retry asks them again.
        """
        call = self._call
        if await self._has_asked(transaction, call.run_id, self.key):
            return None
        for run_id, began, takes in call.origins:
            key = result_key(call.key, began, self._since)
            has_asked = await self._has_asked(transaction, run_id, key)
            left = await transaction.give_up(run_id, key, LAST_LEASE)
            if (end := self._end(left, LAST_LEASE)) is None:
                end = await self._give_up_aliases(transaction, run_id, began, LAST_LEASE)
            if end is not None and takes:
                return end
            if has_asked:
                break
        await transaction.give_up(call.run_id, self.key, _ASKED)
        return None

    async def _has_asked(self, transaction: OpenTransaction, run_id: UUID, key: str) -> bool:
        left = await transaction.find(run_id, key, apart=True)
        return left is not None and lease_of(left) == _ASKED

    async def _give_up_aliases(
        self, transaction: OpenTransaction, run_id: UUID, began: int, number: int
    ) -> Event | None:
        """Return what was left under a name that the step had before; let nothing more come there.

        The log does not have the call, or it would have the key of that name.
        """
        call = self._call
        for former in former_keys(call.step, call.key, call.name):
            left = await transaction.give_up(run_id, result_key(former, began, self._since), number)
            if (end := self._end(left, number)) is not None:
                fields = msgspec.json.decode(end.details or "", type=dict[str, msgspec.Raw])
                fields["name"] = msgspec.Raw(msgspec.json.encode(call.name))
                return Event(end.type, end.key, msgspec.json.encode(fields).decode(), end.at)
        return None

    def _end(self, left: str | None, number: int) -> Event | None:
        """Return what was left if it is an end.

        Raises ConfigurationError if a later try than this has failed: another worker has the run.
        """
        if left is None:
            return None
        if (failed_by := lease_of(left)) is None:
            return Event(STEP_COMPLETED, self._call.key, left, self._at)
        if failed_by > number:
            raise ConfigurationError(
                f"another worker has taken over the run of {self._call.id}, and its attempt has "
                "failed"
            )
        return None
