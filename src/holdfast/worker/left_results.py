"""What attempts of a transactional step leave for each other in a table of results."""

from __future__ import annotations

from holdfast.errors import ConfigurationError
from holdfast.runtime.code.steps import Call
from holdfast.store.port.transactions import OpenTransaction, is_mark


class Looks:
    """What an attempt finds in the table of results, which others may write meanwhile.

    An attempt that began before may commit there late, when it has lost its run. So one of a run
    that was taken over leaves a mark when it fails, and one commits only over the mark that it has
    seen at its beginning.
    """

    def __init__(self, call: Call, *, is_first: bool) -> None:
        self._call = call
        self._has_looked = is_first  # it needs no look: nothing is there
        self.seen: str | None = None

    async def find(self, transaction: OpenTransaction, *, apart: bool) -> str | None:
        """Return the result that an attempt has left. Raises ConfigurationError."""
        left = await transaction.find(self._call.run_id, self._call.key, apart=apart)
        if left is not None and not is_mark(left):
            return left
        if self._has_looked and left != self.seen:
            raise ConfigurationError(
                f"another worker has taken over the run of {self._call.id}, and its attempt failed"
            )
        self._has_looked, self.seen = True, left
        return None

    async def give_up(self, transaction: OpenTransaction) -> str | None:
        """Let no attempt commit that began before; return the result if one has."""
        return await transaction.give_up(self._call.run_id, self._call.key)
