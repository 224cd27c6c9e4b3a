"""What runs are given from outside: inputs, signals, the bodies of webhooks, values of forks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from holdfast.payloads.store.part import PayloadPart
from holdfast.types import (
    Delivered,
    FlowFork,
    FlowForking,
    Fork,
    Forking,
    NewRun,
    NewSignal,
    Notice,
    StartedRun,
    WebhookOutcome,
    WebhookPost,
)

F = TypeVar("F", Fork, FlowFork)


def _named(signal: NewSignal) -> str:
    return f"{'update' if signal.update else 'signal'} {signal.name}"


class PayloadStarts(PayloadPart):
    """Encodes what is given to runs, new ones and forks among them."""

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

    async def receive_webhook(self, post: WebhookPost) -> tuple[WebhookOutcome, list[Notice]]:
        outgoing = self._outgoing()
        what = f"the body of webhook {post.key} of run {post.run_id}"
        sealed = self._sealed(outgoing, post, post.run_id, body=what)
        await outgoing.put()
        return await self._store.receive_webhook(sealed)

    async def fork_run(self, fork: Fork) -> tuple[Forking, list[Notice]]:
        return await self._store.fork_run(await self._sealed_fork(fork))

    async def fork_flow(self, fork: FlowFork) -> tuple[FlowForking, list[Notice]]:
        return await self._store.fork_flow(await self._sealed_fork(fork))

    async def _sealed_fork(self, fork: F) -> F:
        outgoing, owner = self._outgoing(), fork.new_run_id
        results = {
            key: outgoing.seal(text, f"the result of {key}", owner)
            for key, text in fork.results.items()
        }
        fork = msgspec.structs.replace(fork, results=results)
        of = f"the input of a fork of run {fork.run_id}"
        sealed = self._sealed(outgoing, fork, owner, input=of)
        await outgoing.put()
        return sealed
