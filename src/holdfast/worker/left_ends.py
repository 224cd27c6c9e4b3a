"""What attempts of a transactional step have left beside its data, where the log may lack it."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.events import STEP_COMPLETED
from holdfast.runtime.code.steps import Call
from holdfast.store.port.transactions import LAST_LEASE, OpenTransaction, lease_of
from holdfast.types import Event

_ASKED: Final = 0  # the mark of an attempt that has asked the runs before: of no lease


class LeftEnds:
    """Finds the end of a call that an attempt before this one has left.

    Each method is called with a transaction at the place of the data.
    """

    def __init__(self, call: Call, lease_no: int, started_at: int) -> None:
        self._call, self._lease_no, self._at = call, lease_no, started_at

    async def find(self, transaction: OpenTransaction, *, apart: bool) -> Event | None:
        """Return what this run has left; see `OpenTransaction.find`."""
        left = await transaction.find(self._call.run_id, self._call.key, apart=apart)
        if (end := self._end(left, self._lease_no)) is None and apart and self._lease_no > 1:
            end = await self._give_up_aliases(transaction, self._call.run_id, self._lease_no)
        return end

    async def give_up(self, transaction: OpenTransaction) -> Event | None:
        """Return what this run has left; without it, let no earlier lease commit any more."""
        left = await transaction.give_up(self._call.run_id, self._call.key, self._lease_no)
        return self._end(left, self._lease_no)

    async def close_origins(self, transaction: OpenTransaction) -> Event | None:
        """Return what a run has left that this one retries, and let it commit nothing any more.

        If there is none, a mark says so: neither this run nor its own retry asks them again.
        """
        call, key = self._call, self._call.key
        if await self._has_asked(transaction, call.run_id):
            return None
        for run_id, takes in call.origins:
            has_asked = await self._has_asked(transaction, run_id)
            left = await transaction.give_up(run_id, key, LAST_LEASE)
            if (end := self._end(left, LAST_LEASE)) is None:
                end = await self._give_up_aliases(transaction, run_id, LAST_LEASE)
            if end is not None and takes:
                return end
            if has_asked:
                break
        await transaction.give_up(call.run_id, key, _ASKED)
        return None

    async def _has_asked(self, transaction: OpenTransaction, run_id: UUID) -> bool:
        left = await transaction.find(run_id, self._call.key, apart=True)
        return left is not None and lease_of(left) == _ASKED

    async def _give_up_aliases(
        self, transaction: OpenTransaction, run_id: UUID, lease_no: int
    ) -> Event | None:
        """Return what was left under a name that the step had before; let nothing more come there.

        The log does not have the call, or it would have the key of that name.
        """
        call, (scope, slash, leaf) = self._call, self._call.key.rpartition("/")
        name, mark, number = leaf.partition("#")
        for alias in call.step.aliases if name == call.name == call.step.name else ():
            key = f"{scope}{slash}{alias}{mark}{number}"
            left = await transaction.give_up(run_id, key, lease_no)
            if (end := self._end(left, lease_no)) is not None:
                fields = msgspec.json.decode(end.details or "", type=dict[str, msgspec.Raw])
                fields["name"] = msgspec.Raw(msgspec.json.encode(call.name))
                return Event(end.type, end.key, msgspec.json.encode(fields).decode(), end.at)
        return None

    def _end(self, left: str | None, lease_no: int) -> Event | None:
        """Return what was left if it is an end.

        Raises ConfigurationError if an attempt by a later lease than this has failed: another
        worker has the run.
        """
        if left is None:
            return None
        if (failed_by := lease_of(left)) is None:
            return Event(STEP_COMPLETED, self._call.key, left, self._at)
        if failed_by > lease_no:
            raise ConfigurationError(
                f"another worker has taken over the run of {self._call.id}, and its attempt has "
                "failed"
            )
        return None
