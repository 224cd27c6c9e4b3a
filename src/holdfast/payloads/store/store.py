"""A store that keeps payloads encoded: it encodes what is written, and decodes what is read."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.payloads.encoding import Payloads
from holdfast.payloads.store.activities import PayloadActivities
from holdfast.payloads.store.flows import PayloadFlows
from holdfast.payloads.store.limits import PayloadLimits
from holdfast.payloads.store.listening import PayloadListening
from holdfast.payloads.store.messages import PayloadMessages
from holdfast.payloads.store.queries import PayloadQueries
from holdfast.payloads.store.starts import PayloadStarts
from holdfast.payloads.store.streams import PayloadStreams
from holdfast.payloads.store.work import PayloadWork
from holdfast.store.port import Store
from holdfast.store.port.readable import readable_methods

_PASSED_ON: Final = readable_methods(Store) | {"schema"}
_ONLY_SEALED: Final = ("start_runs", "start_flows", "signal_runs")  # with nothing to open


class PayloadStore(
    PayloadStarts,
    PayloadFlows,
    PayloadLimits,
    PayloadMessages,
    PayloadWork,
    PayloadActivities,
    PayloadStreams,
    PayloadQueries,
    PayloadListening,
):
    """Passes every call on to a store, with payloads encoded, and answers with them decoded.

    What is null stays null. Methods that the port marks as readable are those of the store. One
    that is neither marked nor has a part here is refused: its payloads would be stored readable.
    """

    def __init__(self, store: Store, payloads: Payloads) -> None:
        super().__init__(store, payloads)
        if not payloads.seals:
            vars(self).update({name: getattr(store, name) for name in _ONLY_SEALED})

    @cached_property
    def reads(self) -> Store:
        reads = self._plain.reads
        same = reads is self._plain
        return cast("Store", self if same else PayloadStore(reads, self.payloads))

    async def fresh_reads(self) -> Store:
        fresh = await self._plain.fresh_reads()
        return self.reads if fresh is self._plain.reads else cast("Store", self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return what has no payloads as the store has it; it is asked once."""
            if name not in _PASSED_ON:
                raise AttributeError(
                    f"the port does not say if {name} has payloads: encode them in a part of "
                    "PayloadStore, or mark the method with @readable"
                )
            found = vars(self)[name] = getattr(self._store, name)
            return found
