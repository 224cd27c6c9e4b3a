"""Forks of runs."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from holdfast.payloads.outgoing import Outgoing
from holdfast.payloads.store.part import PayloadPart
from holdfast.types import FlowFork, FlowForking, Fork, Forking, Notice

F = TypeVar("F", Fork, FlowFork)


class PayloadForks(PayloadPart):
    """Encodes the results and the inputs that forks are given."""

    async def fork_run(self, fork: Fork) -> tuple[Forking, list[Notice]]:
        outgoing = self._outgoing()
        sealed = self._sealed_results(outgoing, fork)
        await outgoing.put()
        return await self._store.fork_run(sealed)

    async def fork_flow(self, fork: FlowFork) -> tuple[FlowForking, list[Notice]]:
        outgoing = self._outgoing()
        sealed = self._sealed_results(outgoing, fork)
        await outgoing.put()
        return await self._store.fork_flow(sealed)

    def _sealed_results(self, outgoing: Outgoing, fork: F) -> F:
        owner = fork.new_run_id
        results = {
            key: outgoing.seal(text, f"the result of {key}", owner)
            for key, text in fork.results.items()
        }
        fork = msgspec.structs.replace(fork, results=results)
        of = f"the input of a fork of run {fork.run_id}"
        return self._sealed(outgoing, fork, owner, input=of)
