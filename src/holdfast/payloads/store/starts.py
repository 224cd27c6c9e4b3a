"""Starts of runs, and signals to them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.payloads.store.part import PayloadPart
from holdfast.types import Delivered, NewRun, NewSignal, Notice, StartedRun


def _named(signal: NewSignal) -> str:
    return f"{'update' if signal.update else 'signal'} {signal.name}"


class PayloadStarts(PayloadPart):
    """Encodes the inputs of runs and the payloads of signals."""

    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        return await self._store.start_runs(await self.sealed_runs(runs))

    async def signal_runs(self, signals: Sequence[NewSignal]) -> Delivered:
        outgoing = self._outgoing()
        sealed = [
            self._sealed(
                outgoing,
                each,
                each.run_id,
                payload=f"the payload of {_named(each)} to run {each.run_id}",
            )
            for each in signals
        ]
        await outgoing.put()
        return await self._store.signal_runs(sealed)
