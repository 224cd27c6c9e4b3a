"""A steady stream of runs, by a driver that keeps what was acknowledged to it, and when."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from uuid import UUID

import httpx

from benchmarks.failures.app import NAME, SIGNAL, Job
from holdfast import Client
from holdfast.errors import (
    DatabaseUnavailable,
    ResultTimeout,
    RunEnded,
    RunFailed,
    RunNotFound,
    TransientDatabaseError,
)

T = TypeVar("T")

WORD = "packed"
RESULT_SECONDS = 5.0
PAUSE_SECONDS = 0.05  # before a refused call is repeated


class Away(Exception):
    """The service cannot be reached now; the call may be repeated."""


class Lost(Exception):
    """There is no such run, although its start was acknowledged."""


class Caller(Protocol):
    """Calls the service, in one way or another. All raise Away, those of a run Lost."""

    async def start(self, key: str, job: Job) -> UUID:
        """Start a run; the same key is the same run."""
        ...

    async def signal(self, run_id: UUID, signal_id: str) -> bool:
        """Send the signal that a run waits for; return True if it was not there before."""
        ...

    async def result(self, run_id: UUID, seconds: float = RESULT_SECONDS) -> Any:
        """Wait a while for the output of a run; None if it has not ended, the error if failed."""
        ...


@dataclass
class ClientCaller:
    """Calls the database, as Python programs do."""

    client: Client

    async def start(self, key: str, job: Job) -> UUID:
        with _away():
            return (await self.client.start(NAME, job, key=key)).run_id

    async def signal(self, run_id: UUID, signal_id: str) -> bool:
        with _away(), suppress(RunEnded):
            return await self.client.handle(run_id).signal(SIGNAL, WORD, signal_id=signal_id)
        return False

    async def result(self, run_id: UUID, seconds: float = RESULT_SECONDS) -> Any:
        with _away(), suppress(ResultTimeout):
            try:
                return await self.client.handle(run_id).result(timeout=seconds)
            except RunFailed as failed:
                return repr(failed)
        return None


@contextmanager
def _away() -> Generator[None]:
    """Turn what says "try again" and "there is no such run" into the driver's own words."""
    try:
        yield
    except (DatabaseUnavailable, TransientDatabaseError) as error:
        raise Away(str(error)) from error
    except RunNotFound as error:
        raise Lost(str(error)) from error


@asynccontextmanager
async def calling_database(
    url: str, *, listen: str | None = None, redis: str | None = None
) -> AsyncGenerator[Caller]:
    """Call the database at a URL while the block lasts."""
    async with Client(url, listen_database=listen, redis=redis) as client:
        yield ClientCaller(client)


@dataclass
class RestCaller:
    """Calls `holdfast server`: the next of several if one cannot be reached, as a balancer does."""

    http: httpx.AsyncClient
    servers: list[str]

    async def start(self, key: str, job: Job) -> UUID:
        app, _, name = NAME.partition("/")
        path = f"/v1/workflows/{name}/runs?app={app}"
        answer = await self._ask("POST", path, json={"input": job}, key=key)
        return UUID(answer["run_id"])

    async def signal(self, run_id: UUID, signal_id: str) -> bool:
        path = f"/v1/runs/{run_id}/signals/{SIGNAL}"
        answer = await self._ask("POST", path, json=WORD, key=signal_id)
        return bool(answer.get("changed"))

    async def result(self, run_id: UUID, seconds: float = RESULT_SECONDS) -> Any:
        answer = await self._ask("GET", f"/v1/runs/{run_id}?wait={seconds:g}")
        return {"completed": answer["output"], "running": None}.get(
            answer["status"], f"it {answer['status']}"
        )

    async def _ask(self, method: str, path: str, *, json: Any = None, key: str = "") -> Any:
        headers = {"Idempotency-Key": key} if key else {}
        server = self.servers[0]
        try:
            answer = await self.http.request(method, server + path, json=json, headers=headers)
        except httpx.TransportError as error:
            if server == self.servers[0]:  # or another call has left it
                self.servers.append(self.servers.pop(0))
            raise Away(repr(error)) from error
        if answer.status_code in (429, 502, 503):
            raise Away(answer.text)
        if answer.status_code == 404:
            raise Lost(answer.text)
        if answer.status_code == 409:  # it has ended
            return {}
        answer.raise_for_status()
        return answer.json()


@asynccontextmanager
async def calling_servers(urls: Sequence[str], key: str) -> AsyncGenerator[Caller]:
    """Call HTTP servers while the block lasts."""
    headers = {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(headers=headers, limits=limits, timeout=30) as http:
        yield RestCaller(http, list(urls))


Calling = AbstractAsyncContextManager[Caller]


@dataclass
class Order:
    """A run as the driver knows it: what was acknowledged, at which moments of this machine."""

    job: Job
    asked_at: float
    run_id: UUID | None = None
    started_at: float | None = None
    ended_at: float | None = None
    result: Any = None
    lost: bool = False  # the start was acknowledged, and there is no such run
    signal_lost: bool = False  # the same of its signal
    end_lost: bool = False  # the driver had its result, and the run has not ended, or otherwise

    @property
    def waited(self) -> float:
        """How long the caller waited for the answer to the start."""
        return (self.started_at or time.time()) - self.asked_at

    def is_open_since(self, moment: float) -> bool:
        """Return True if the run was open then, and still is."""
        return self.open_at(moment) and self.ended_at is None

    def open_at(self, moment: float) -> bool:
        """Return True if the driver knew of the run then, and not of its end."""
        return (
            self.started_at is not None
            and self.started_at < moment
            and (self.ended_at is None or self.ended_at > moment)
        )


@dataclass
class Driver:
    """Starts runs at a rate, whatever becomes of them, signals each and waits for its result.

    Of `every` so many runs, one has `length` long steps instead of one.
    """

    caller: Caller
    prefix: str
    rate: float
    every: int = 1
    length: int = 1
    orders: list[Order] = field(default_factory=list[Order])
    _stopped: bool = False

    async def run(self) -> None:
        """Start runs until stopped; each takes its own course."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in itertools.count():
                await asyncio.sleep(began + number / self.rate - time.monotonic())
                if self._stopped:
                    return
                job = Job(number=number, length=1 if number % self.every else self.length)
                self.orders.append(order := Order(job, time.time()))
                group.create_task(self._follow(order))

    def stop(self) -> None:
        """Start nothing more. `run` returns when all that was started has ended, or is lost."""
        self._stopped = True

    async def _follow(self, order: Order) -> None:
        key = self._key(order)
        order.run_id = run_id = await patiently(lambda: self.caller.start(key, order.job))
        order.started_at = time.time()
        try:
            await patiently(lambda: self.caller.signal(run_id, key))
            order.result = await self._result(order)
        except Lost:
            order.lost = True
        order.ended_at = time.time()

    async def confirm(self) -> None:
        """Ask again for everything that was told: what is not so any more, was lost."""
        await asyncio.gather(*(self._confirm(order) for order in self.orders if not order.lost))

    async def _confirm(self, order: Order) -> None:
        assert order.run_id is not None
        run_id = order.run_id
        try:
            result = await patiently(lambda: self.caller.result(run_id, 0))
            if result != order.result:
                order.end_lost = True
                order.result = await self._result(order)
        except Lost:
            order.lost = True

    def _key(self, order: Order) -> str:
        return f"{self.prefix}-{order.job['number']}"

    async def _result(self, order: Order) -> Any:
        assert order.run_id is not None
        run_id, key = order.run_id, self._key(order)
        while (result := await patiently(lambda: self.caller.result(run_id))) is None:
            # It may have lost the signal: one with the same id changes nothing if not.
            if await patiently(lambda: self.caller.signal(run_id, key)):
                order.signal_lost = True
        return result


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call while the service is away."""
    while True:
        try:
            return await call()
        except Away:
            await asyncio.sleep(PAUSE_SECONDS)
