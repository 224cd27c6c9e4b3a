"""Count the files of holdfast that one step, signal, message or start passes through.

Each call is made on a real database (embedded, or `--database URL`), in a program that holds a
client, a server and a worker of an app that has a flow and a consumer too. Counted are the Python
files in which a function was called between the user's call and the moment when its result is back
in the user's code and its row is in the database, and the SQL files of the functions that were
called on the server. Every call is made once before it is traced, so that imports do not count, and
then several times: what is on its way is there each time. A server answers the same request a
moment before the one that is traced, as in its daily life: it knows that the name is of no flow,
which it believes for a second, and that a worker has had the workflow.

Left out is what runs beside a call and is not on its way: the services, the polls and the
heartbeat of the worker have intervals of a minute, tracing begins after their first run, and the
thread of the watchdog is not traced. What a call itself wakes, such as the claim that a
notification leads to, counts.

    python scripts/trace_calls.py            # the counts
    python scripts/trace_calls.py --files    # and the files, by room
    python scripts/trace_calls.py --check    # exit 1 if a count is above its limit
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from types import FrameType

import asyncpg
import httpx

from holdfast import App, Client, Context, local
from holdfast.database.migrate import prepare_schema
from holdfast.database.resolve import resolve_database
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.worker import WorkerOptions

PACKAGE = Path(sys.modules[App.__module__].__file__ or "").resolve().parents[1]
SCHEMA = "trace_calls"
_MADE = re.compile(r"^create or replace (?:function|procedure) holdfast\.(\w+)", re.MULTILINE)
_CALLED = re.compile(rf"{SCHEMA}\"?\.(\w+)\(")
_BESIDE = "holdfast watchdog"  # a thread that looks at the worker several times a second
_FIRST_RUN_SECONDS = 0.5  # until the services have run for the first time, and wait
_TRIES, _MOST_TRIES = 3, 40  # what runs beside a call now and then is not in all of them
# What each path has now. Make a number smaller with the path; a larger one needs a reason.
LIMITS = {
    "step": 18,
    "signal": 22,
    "activity": 28,
    "step of a flow": 14,
    "message": 22,
    "start by HTTP": 22,
}
# Before Python 3.11.3 this file stands in for a part of asyncio, whose own files do not count.
_STAND_INS = {"runtime/loop/asyncio_forms.py"} if sys.version_info < (3, 11, 3) else set[str]()
QUEUE = "orders"
HOST = "127.0.0.1"
KEY = "k" * 32
START = "/v1/workflows/nothing/runs?app=trace"

Call = Callable[[Client, str], Awaitable[None]]

app = App("trace")


class Tracer:
    """The files in which a function was called while the tracer was on, in all threads."""

    def __init__(self) -> None:
        self._on = False
        self._names: set[str] = set()
        self._queries: set[str] = set()
        self.files: set[str] = set()

    async def closed(self) -> None:
        """Wait until the call's result is back in the workflow."""
        while self._on:
            await asyncio.sleep(0.01)

    def install(self) -> None:
        """Look at all calls from now on, in this thread and in those that start later."""
        for name in ("fetch", "fetchrow", "execute"):
            self._watch_queries(name)
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def open(self) -> None:
        self._names.clear()
        self._queries.clear()
        self._on = True

    def close(self) -> None:
        if self._on:
            self._on = False
            self.files = {
                Path(name).relative_to(PACKAGE).as_posix()
                for name in self._names
                if name.startswith(str(PACKAGE))
            }
            self.files -= _STAND_INS
            functions = set(_CALLED.findall("\n".join(self._queries)))
            self.files |= {file for name, file in _sql_files().items() if name in functions}

    def _watch_queries(self, name: str) -> None:
        method = getattr(asyncpg.Connection, name)

        def watched(connection: object, query: str, *rest: object, **how: object) -> object:
            if self._on:
                self._queries.add(query)
            return method(connection, query, *rest, **how)

        setattr(asyncpg.Connection, name, watched)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if self._on and event == "call" and threading.current_thread().name != _BESIDE:
            self._names.add(frame.f_code.co_filename)


tracer = Tracer()


@app.step
async def double(n: int) -> int:
    return 2 * n


@app.step
async def close_window(n: int) -> int:
    tracer.close()  # a step starts when what stands before it is in the database
    return n


@app.activity
async def treble(n: int) -> int:
    return 3 * n


@app.workflow
async def one_step(ctx: Context, n: int) -> int:
    tracer.open()
    doubled = await double(n)
    return await close_window(doubled)


@app.workflow
async def one_signal(ctx: Context, n: int) -> int:
    got = await ctx.wait_for_signal("go", type=int)
    tracer.close()
    return got + n


@app.workflow
async def one_activity(ctx: Context, n: int) -> int:
    tracer.open()
    trebled = await treble(n)
    tracer.close()
    return trebled


@app.workflow
async def nothing(ctx: Context, n: int) -> int:
    return n


two_steps = app.flow("two_steps", input=int)


@two_steps.step
async def first(run: int) -> int:
    tracer.open()
    return run


@two_steps.step
async def second(first: int) -> int:
    tracer.close()  # it starts when the first has ended in the database
    return first


@app.consumer(QUEUE)
async def take(n: int) -> None:
    pass


async def _step(client: Client, key: str) -> None:
    await client.run(one_step, 1, key=key)


async def _signal(client: Client, key: str) -> None:
    handle = await client.start(one_signal, 1, key=key)
    await asyncio.sleep(0.3)  # until it waits without a lease
    tracer.open()
    await handle.signal("go", 2)
    await tracer.closed()
    await handle.result()


async def _activity(client: Client, key: str) -> None:
    await client.run(one_activity, 1, key=key)


async def _flow(client: Client, key: str) -> None:
    await client.run(two_steps, 1, key=key)


async def _message(client: Client, key: str) -> None:
    tracer.open()
    await client.queues.send(QUEUE, 1)
    await asyncio.sleep(0.3)  # until it is acknowledged: with the next receive
    tracer.close()


async def _http(client: Client, key: str) -> None:
    url = client._session._database
    async with Server(url, schema=SCHEMA, auth=KeyAccess(KEY), hosts=[HOST]) as server:
        transport = httpx.ASGITransport(server)
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(
            transport=transport, base_url=f"http://{HOST}", headers=headers
        ) as http:
            await asyncio.sleep(0.3)  # until its services have begun, and wait
            await http.post(START, json={"input": 1})
            tracer.open()
            answer = await http.post(START, json={"input": 1})
            tracer.close()
            answer.raise_for_status()


WITH_WORKER: dict[str, Call] = {
    "step": _step,
    "signal": _signal,
    "activity": _activity,
    "step of a flow": _flow,
    "message": _message,
}
ALONE: dict[str, Call] = {"start by HTTP": _http}


def _sql_files() -> dict[str, str]:
    """Return the file of each SQL function."""
    return {
        name: path.relative_to(PACKAGE).as_posix()
        for path in sorted((PACKAGE / "sql" / "functions").rglob("*.sql"))
        for name in _MADE.findall(path.read_text())
    }


async def trace(database: str) -> dict[str, set[str]]:
    """Return the files that each call passed through."""
    tracer.install()
    quiet = WorkerOptions(
        heartbeat_seconds=60, lease_seconds=600, poll_seconds=5, maintenance_seconds=60
    )
    found: dict[str, set[str]] = {}
    await prepare_schema(database, SCHEMA)
    async with local(app, database, schema=SCHEMA, options=quiet) as client:
        await client.queues.create(QUEUE)
        await asyncio.sleep(_FIRST_RUN_SECONDS)
        for name, call in WITH_WORKER.items():
            found[name] = await _files_of(name, call, client)
    async with Client(database, app=app, schema=SCHEMA) as client:
        for name, call in ALONE.items():
            found[name] = await _files_of(name, call, client)
    return found


async def _files_of(name: str, call: Call, client: Client) -> set[str]:
    """Return the files that all tries of a call passed through."""
    await call(client, f"{name}-{id(tracer)}")  # imports, and fills caches
    found: set[str] = set()
    for attempt in range(_MOST_TRIES):
        if attempt >= _TRIES and len(found) <= LIMITS[name]:
            break
        await call(client, f"{name}-{attempt}-{id(tracer)}")
        found = found & tracer.files if attempt else tracer.files
    return found


def longer_than_allowed(found: Mapping[str, Collection[str]]) -> list[str]:
    """Return the names of the paths that have more files than their limits."""
    return [name for name, files in found.items() if len(files) > LIMITS[name]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--database", metavar="URL", help="a server instead of the embedded one")
    parser.add_argument("--data", type=Path, help="the data directory of the embedded one")
    parser.add_argument("--files", action="store_true", help="print the files too")
    parser.add_argument("--check", action="store_true", help="fail if a count is above its limit")
    options = parser.parse_args()
    database = resolve_database(options.database, options.data)
    try:
        found = asyncio.run(trace(database.url))
    finally:
        database.close()
    for name, files in found.items():
        print(f"{name}: {len(files)} files (at most {LIMITS[name]})")
        if options.files:
            for file in sorted(files):
                print(f"    {file}")
    return 1 if options.check and longer_than_allowed(found) else 0


if __name__ == "__main__":
    sys.exit(main())
