"""What runs meanwhile: runs of every kind, messages and events, and callers that are patient.

Each start, signal, message and event has a key, and some calls are made twice, as a nervous caller
does it. Half of the callers use the client, the others `holdfast server`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

import httpx

from holdfast import Client, Limit
from holdfast.client import RunHandle
from holdfast.errors import DatabaseUnavailable, RunEnded
from tests.chaos.names import (
    AT_ONCE,
    CALLER,
    EVENT,
    FIFO,
    GROUPS,
    NARROW,
    NEWS,
    PARCELS,
    SCHEDULES,
    SIDE,
    STARTING,
    TICKING,
)
from tests.chaos.world import World
from tests.crash.across import Errand
from tests.crash.flows import Sheet
from tests.crash.people import update_all

MOST_OPEN = 30  # programs at once
SIGNALS = {"signalled": 3, "everything": 1, "office": 1}
RUNS = ("chain", "fan_out", "signalled", "everything", "office", "sheet", "tell", "stay", "narrow")
KINDS = (*RUNS, "tell", "tell", "messages", "events", "listen", "listen")
PAUSE_SECONDS = 0.1
LONGEST_BETWEEN_SECONDS = 0.3


async def insist(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a call until it is answered."""
    while True:
        try:
            return await call()
        except (DatabaseUnavailable, httpx.TransportError, ServerAway):
            await asyncio.sleep(PAUSE_SECONDS)


class ServerAway(Exception):
    """The server says that it cannot do it now."""


@dataclass
class Caller:
    """Calls in two ways."""

    client: Client
    http: httpx.AsyncClient

    async def start(self, kind: str, given: object, key: str, *, by_server: bool) -> UUID:
        if not by_server:
            return (await self.client.start(f"crash/{kind}", given, key=key)).run_id
        path = f"/v1/workflows/{kind}/runs?app=crash"
        answer = await self._ask("POST", path, {"input": given}, key)
        return UUID(answer["run_id"])

    async def signal(self, run_id: UUID, number: int, *, by_server: bool) -> None:
        if by_server:
            await self._ask("POST", f"/v1/runs/{run_id}/signals/go", number, f"go-{number}")
        else:
            with suppress(RunEnded):
                handle = self.client.handle(run_id)
                await handle.signal("go", number, signal_id=f"go-{number}")

    async def result(self, run_id: UUID, *, by_server: bool) -> Any:
        if not by_server:
            return await self.client.handle(run_id).result()
        while True:
            answer = await self._ask("GET", f"/v1/runs/{run_id}?wait=5")
            if answer["status"] != "running":
                return answer["output"]

    async def _ask(self, method: str, path: str, body: object = None, key: str = "") -> Any:
        headers = {**CALLER, **({"Idempotency-Key": key} if key else {})}
        answer = await self.http.request(method, path, json=body, headers=headers)
        if answer.status_code in (429, 502, 503):
            raise ServerAway(answer.text)
        if answer.status_code == 409 and "/signals/" in path:  # the run has ended
            return {}
        answer.raise_for_status()
        return answer.json()


@dataclass
class Load:
    """What was acknowledged to the callers; the audit holds it against what there is."""

    world: World
    caller: Caller
    choose: random.Random
    started: dict[UUID, str] = field(default_factory=dict[UUID, str])
    keys: dict[str, UUID] = field(default_factory=dict[str, UUID])
    results: dict[UUID, Any] = field(default_factory=dict[UUID, Any])
    sent: dict[str, int] = field(default_factory=dict[str, int])  # queue/number: message id
    published: set[int] = field(default_factory=set[int])
    counts: Counter[str] = field(default_factory=Counter[str])
    errors: list[str] = field(default_factory=list[str])
    _stopped: bool = False

    async def prepare(self) -> None:
        """Make the queues, the limit and the schedules, and wait until workers know the app."""
        client = self.caller.client
        while not any("sheet" in each for each in await insist(self._handlers)):
            await asyncio.sleep(0.02)
        for queue in (PARCELS, STARTING):
            await insist(partial(client.queues.create, queue, visibility="3s"))
        await insist(partial(client.queues.create, FIFO, fifo=True, visibility="3s"))
        await insist(partial(client.limits.set, Limit(AT_ONCE), workflow=NARROW))
        for number in range(SCHEDULES):
            name = f"{TICKING}{number}"
            create = partial(client.schedules.create, name, "crash/tick", every="1s", input=number)
            await insist(create)

    async def _handlers(self) -> list[str]:
        workers = await self.caller.client.workers.list()
        return [handler for worker in workers for handler in worker.handlers]

    async def run(self) -> None:
        """Begin programs until stopped; return when all that began have ended."""
        slots = asyncio.Semaphore(MOST_OPEN)
        async with asyncio.TaskGroup() as group:
            for number in itertools.count():
                await slots.acquire()
                if self._stopped:
                    return
                kind = KINDS[number] if number < len(KINDS) else self.choose.choice(KINDS)
                program = group.create_task(self._try(kind, number))
                program.add_done_callback(lambda _: slots.release())
                await asyncio.sleep(self.choose.uniform(0, LONGEST_BETWEEN_SECONDS))

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True

    async def pause_schedules(self) -> None:
        for number in range(SCHEDULES):
            await insist(partial(self.caller.client.schedules.pause, f"{TICKING}{number}"))

    async def _play(self, kind: str, number: int) -> None:
        self.counts[kind] += 1
        twice, by_server = number % 4 < 2, bool(number % 2)
        if kind == "messages":
            await self._send(number, twice)
        elif kind == "events":
            await self._publish(number, twice)
        else:
            await self._run(kind, number, twice, by_server)

    async def _try(self, kind: str, number: int) -> None:
        """Keep an error of a caller: the others continue."""
        try:
            await self._play(kind, number)
        except Exception as error:
            self.errors.append(f"caller of {kind} {number}: {error!r}")

    async def _run(self, kind: str, number: int, twice: bool, by_server: bool) -> None:
        given: object = number
        if kind == "sheet":
            given = Sheet(rows=number % 5, seconds=0.01)
        elif kind == "office":
            given = Errand(number=number, queue=SIDE)
        key = f"{kind}-{number}"
        start = partial(self.caller.start, kind, given, key, by_server=by_server)
        run_id = await insist(start)
        self.started[run_id], self.keys[key] = kind, run_id
        if twice:
            assert await insist(start) == run_id, f"{key} was started twice"
        if kind == "listen":
            await self._talk_to(run_id, number, twice, by_server)
        if kind == "tell":
            with self.world.told.open("a") as told:
                told.write(f"{run_id}\n")
        async with asyncio.TaskGroup() as group:
            if kind == "office":
                handle: RunHandle[object] = self.caller.client.handle(run_id)
                group.create_task(update_all([handle]))
            for each in range(SIGNALS.get(kind, 0)):
                signal = partial(self.caller.signal, run_id, each, by_server=by_server)
                await insist(signal)
                if twice:
                    await insist(signal)
            news = group.create_task(self._bring_news(number)) if kind == "listen" else None
            self.results[run_id] = await insist(
                partial(self.caller.result, run_id, by_server=not by_server)
            )
            if news is not None:
                news.cancel()

    async def _talk_to(self, run_id: UUID, number: int, twice: bool, by_server: bool) -> None:
        """Start a run that sends another one words, and publishes an event."""
        given = {"number": number, "to": str(run_id)}
        key = f"talk-{number}"
        start = partial(self.caller.start, "talk", given, key, by_server=by_server)
        talking = await insist(start)
        self.started[talking], self.keys[key] = "talk", talking
        self.published.add(number)
        if twice:
            assert await insist(start) == talking, f"{key} was started twice"

    async def _bring_news(self, number: int) -> None:
        """Publish what a run waits for, again and again: it may not wait for it yet."""
        while True:
            await insist(partial(self.caller.client.topics.publish, f"{NEWS}.{number}"))
            await asyncio.sleep(5 * PAUSE_SECONDS)

    async def _send(self, number: int, twice: bool) -> None:
        for queue in (PARCELS, FIFO, STARTING):
            send = partial(
                self.caller.client.queues.send,
                queue,
                number,
                dedup_id=f"{queue}-{number}",
                group=f"g{number % GROUPS}" if queue == FIFO else None,
            )
            sent = await insist(send)
            self.sent[f"{queue}/{number}"] = sent
            if twice:
                assert await insist(send) == sent, f"{queue}: {number} was sent twice"

    async def _publish(self, number: int, twice: bool) -> None:
        publish = partial(
            self.caller.client.topics.publish, EVENT, number, event_id=f"event-{number}"
        )
        await insist(publish)
        self.published.add(number)
        if twice:
            assert not (await insist(publish)).is_new, f"event {number} was published twice"
