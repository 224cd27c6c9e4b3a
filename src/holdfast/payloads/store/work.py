"""What workers do with tasks: claims, commits and heartbeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from holdfast.errors import PayloadError
from holdfast.payloads.details import seal_event
from holdfast.payloads.outgoing import SOON_SECONDS, Outgoing
from holdfast.payloads.shelf import Put
from holdfast.payloads.store.part import PayloadPart
from holdfast.types import (
    Ahead,
    ClaimedTask,
    Claims,
    Committed,
    Event,
    Finish,
    Heartbeat,
    Lease,
    Notice,
    Refusal,
    Release,
    TurnCommit,
    WorkerInfo,
)


class PayloadWork(PayloadPart):
    """Decodes what is claimed, and encodes what is committed."""

    async def claim_tasks(self, *arguments: Any, **options: Any) -> Claims:
        """Claim tasks; see `ClaimStore.claim_tasks`.

        What a run refers to may come late: then its task has no events, and its log is read alone.
        """
        claims = await self._plain.claim_tasks(*arguments, **options)
        if self._shelf is not None:
            runs = [task for task in claims.tasks if task.kind == "workflow"]
            late = {each.run_id for each in await self._shelf.begin_reading(runs, SOON_SECONDS)}
            tasks = [
                _unread(task) if task.kind == "workflow" and task.run_id in late else task
                for task in claims.tasks
            ]
            tasks = await self._shelf.resolved(tasks)
            claims = msgspec.structs.replace(claims, tasks=tasks)
        return msgspec.structs.replace(
            claims, tasks=[self._open_task(task) for task in claims.tasks]
        )

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        """Commit; see `CommitStore.commit`. Parts with values that are too large are refused.

        A part is `busy` while an object that it refers to is not there yet.
        """
        outgoing, puts = self._outgoing(), dict[UUID, list[Put]]()
        sealed, refused = list[TurnCommit](), dict[UUID, Refusal]()
        for turn in turns:
            count = len(outgoing.puts)
            try:
                sealed.append(self._seal_turn(outgoing, turn))
            except PayloadError as error:
                refused[turn.run_id] = Refusal("invalid", [], str(error))
                del outgoing.puts[count:]
            if len(outgoing.puts) > count:
                puts[turn.run_id] = [put for put, _ in outgoing.puts[count:]]
        if outgoing.puts:
            missing = await outgoing.put_soon()
            busy = {run_id for run_id, its in puts.items() if not missing.isdisjoint(its)}
            refused.update({run_id: Refusal("busy", []) for run_id in busy})
            sealed = [turn for turn in sealed if turn.run_id not in busy]
        committed = await self._store.commit(worker_id, token, sealed)
        for run_id, each in committed.refused.items():
            refused[run_id] = msgspec.structs.replace(each, tail=self._open_events(each.tail))
        ahead = {
            run_id: Ahead(self._open_events(each.tail)) for run_id, each in committed.ahead.items()
        }
        return msgspec.structs.replace(committed, refused=refused, ahead=ahead)

    async def sealed_step(self, run_id: UUID, event: Event) -> Event:
        outgoing = self._outgoing()
        sealed = seal_event(outgoing, event, run_id)
        await outgoing.put()
        return sealed

    def _seal_turn(self, outgoing: Outgoing, turn: TurnCommit) -> TurnCommit:
        then = turn.then
        if isinstance(then, Finish) and then.status != "continued":
            then = self._sealed(outgoing, then, turn.run_id, output="its output")
            then = self._sealed_error(then)
        events = tuple(seal_event(outgoing, event, turn.run_id) for event in turn.events)
        return msgspec.structs.replace(turn, events=events, then=then)

    async def release_tasks(self, worker_id: str, releases: Sequence[Release]) -> list[Notice]:
        sealed = [self._sealed_reason(release) for release in releases]
        return await self._store.release_tasks(worker_id, sealed)

    async def heartbeat(
        self, info: WorkerInfo, leases: Sequence[Lease], **options: Any
    ) -> Heartbeat:
        hidden = [self._hidden(lease) for lease in leases]
        return await self._store.heartbeat(info, hidden, **options)


def _unread(task: ClaimedTask) -> ClaimedTask:
    """Return the task of a run without the events that came with it: it is then read."""
    known = None if task.tail_from is None else task.log_length
    return msgspec.structs.replace(task, input=None, tail=(), tail_from=known)
