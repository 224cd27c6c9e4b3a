"""An upgrade of schema, workers and servers under load, from the wheel of an earlier commit."""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import httpx
import psycopg
import pytest

from holdfast.cli import exits
from holdfast.client import Client
from tests.cli.processes import PATIENCE_SECONDS, Process, running
from tests.crash.ledger import check_run, read_ledger

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

# It lacks the migrations from 0030 on. Where its workers cannot work on the newest schema any more,
# a later commit takes its place, and the changelog says so.
OLD = "c1e21fcfaa5d"
ROOT = Path(__file__).parents[2]
WORKERS = 2  # of each release
RUNS = 10  # that end in each phase
PAUSE_SECONDS = 0.04  # between two starts of the load

APP = """
import asyncio, json, os
from uuid import uuid4
from holdfast import App, Context, current_activity, current_message, current_step

app = App("crash")

def effect(id):
    made = {"nonce": uuid4().hex, "release": os.environ["RELEASE"]}
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(json.dumps({"id": id, **made}) + chr(10))
    return made

@app.step
async def act(place: str) -> dict:
    await asyncio.sleep(0.01)
    return effect(current_step().idempotency_key)

@app.activity
async def deliver(place: str) -> dict:
    await asyncio.sleep(0.01)
    return effect(current_activity().idempotency_key)

@app.workflow
async def part(ctx: Context, n: int) -> list[str]:
    return [(await act("part"))["nonce"]]

@app.workflow
async def order(ctx: Context, n: int) -> list[str]:
    nonces = [(await act("first"))["nonce"]]
    child = await ctx.start_child(part, n)
    await ctx.wait_for_signal("go")
    nonces.append((await deliver("there"))["nonce"])
    await asyncio.sleep(0.1)
    nonces += await child.result()
    return [*nonces, (await act("last"))["nonce"]]

@app.workflow
async def clock(ctx: Context, n: int) -> str:
    return str(ctx.scheduled_at)

app.schedule(clock, every="1s", name="ticks", input=0, overlap="allow")

sums = app.flow("sums", input=int)

@sums.step
def numbers(run: int) -> list[int]:
    return [run] * 5

@sums.map(numbers)
async def twice(number: int) -> int:
    return 2 * number

@sums.step
def total(twice: list[int]) -> int:
    return sum(twice)

@app.consumer("letters")
async def read(number: int) -> None:
    effect(f"letter {number}")
"""


@dataclass
class Release:
    """The installed wheel of one release, and how its programs are run."""

    name: str
    packages: Path
    place: Path
    url: str
    stack: ExitStack
    started: Counter[str] = field(default_factory=Counter[str])

    @property
    def env(self) -> dict[str, str]:
        return {
            "PYTHONPATH": str(self.packages),
            "HOME": str(self.place),
            "HOLDFAST_DATABASE_URL": self.url,
            "LEDGER": str(self.place / "ledger"),
            "RELEASE": self.name,
        }

    def run(self, *arguments: str) -> Process:
        """Start a command of this release, which ends with the test at the latest."""
        command = arguments[0]
        self.started[command] += 1
        log = self.place / f"{self.name}-{command}-{self.started[command]}.log"
        return self.stack.enter_context(running(log, *arguments, env=self.env, cwd=self.place))

    async def workers(self) -> list[Process]:
        """Start workers, and wait until all of them are ready."""
        workers = [self.run("worker", "shop.py:app", "--grace", "20") for _ in range(WORKERS)]
        for worker in workers:
            await asyncio.to_thread(worker.await_text, "ready: queues default")
        return workers

    def server(self) -> tuple[Process, str]:
        process = self.run("server", "--port", "0", "--grace", "10")
        address = re.search(r"http://\S+", process.await_text("serving"))
        assert address is not None
        return process, address.group()

    def migrate(self) -> None:
        process = self.run("migrate")
        assert process.ended() == 0, process.text()


def checkout_of(commit: str, place: Path) -> Path:
    """Put the files of a commit into a folder. Skips where the history is not there."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("there is no git")
    packed = subprocess.run(
        [git, "-C", str(ROOT), "archive", "--format=tar", commit], capture_output=True, check=False
    )
    if packed.returncode:
        pytest.skip(f"commit {commit} is not here (a shallow clone, or no repository)")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # before Python 3.11.4: none
        tar.extractall(place)
    return place


def installed(source: Path, place: Path) -> Path:
    """Build the wheel of a checkout, and install it alone into a folder."""
    build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", str(place / "dist"))
    subprocess.run([sys.executable, *build, str(source)], check=True, capture_output=True)
    (wheel,) = (place / "dist").glob("*.whl")
    target = place / "installed"
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel))
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    return target


class Load:
    """Starts runs and signals them over REST, at any of the servers; repeats what failed."""

    def __init__(self, key: str) -> None:
        self.servers: list[str] = []
        self.runs: dict[str, list[UUID]] = {"order": [], "sums": []}
        self.letters: list[str] = []
        self.failures = Counter[str]()
        self._asked = Counter[str]()  # requests that a server has not answered
        self._http = httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=30)
        self._choose = random.Random(1)

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Start runs while the block lasts, and let each of them continue at last."""
        over = asyncio.Event()
        going = asyncio.create_task(self._go_on(over))
        try:
            yield
        finally:
            over.set()
            await going
            await self._http.aclose()

    async def make_queue(self) -> None:
        """Make the queue of the consumer."""
        await self._post("/v1/message-queues", {"name": "letters"}, "")

    async def leave(self, server: str) -> None:
        """Send a server no more requests, and wait for its answers, as a load balancer does."""
        self.servers.remove(server)
        await until(lambda: self._asked[server] == 0)

    async def _go_on(self, over: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            number = 0
            while not over.is_set():
                number += 1
                group.create_task(self._one(number))
                await asyncio.sleep(PAUSE_SECONDS)

    async def _one(self, number: int) -> None:
        """Start an order and let it continue, or start a flow and send a message."""
        name = "sums" if number % 2 else "order"
        path, body = f"/v1/workflows/{name}/runs?app=crash", {"input": number}
        run = (await self._post(path, body, f"start {number}"))["run_id"]
        self.runs[name].append(UUID(run))
        if name == "order":
            await self._post(f"/v1/runs/{run}/signals/go", number, f"go {number}")
        else:
            letter = {"payload": number}
            await self._post("/v1/message-queues/letters/messages", letter, f"letter {number}")
            self.letters.append(f"letter {number}")

    async def _post(self, path: str, body: object, key: str) -> Any:
        """Send a request until a server has taken it: it does what it says once."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                server = self._choose.choice(self.servers)
                headers = {"Idempotency-Key": key} if key else {}
                self._asked[server] += 1
                try:
                    answer = await self._http.post(server + path, json=body, headers=headers)
                except httpx.TransportError as error:
                    self.failures[type(error).__name__] += 1
                    continue
                finally:
                    self._asked[server] -= 1
                if answer.status_code == 503:
                    self.failures[answer.text] += 1
                    await asyncio.sleep(0.1)
                    continue
                assert answer.is_success, answer.text
                return answer.json() if answer.content else None


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await asyncio.to_thread(look):
            await asyncio.sleep(0.05)


async def test_an_upgrade_under_load_loses_nothing_and_repeats_nothing(
    empty_database_url: str, tmp_path: Path
) -> None:
    """S15: in the order of `docs/howto/upgrades.md`."""
    before = installed(checkout_of(OLD, tmp_path / "checkout"), tmp_path / "old")
    after = installed(ROOT, tmp_path / "new")
    (tmp_path / "shop.py").write_text(APP)
    with ExitStack() as stack:
        old = Release("old", before, tmp_path, empty_database_url, stack)
        new = Release("new", after, tmp_path, empty_database_url, stack)
        connection = stack.enter_context(psycopg.connect(empty_database_url, autocommit=True))

        def count(query: str) -> int:
            row = connection.execute(query.encode()).fetchone()
            assert row is not None
            return int(row[0])

        async def more_end(release: str = "") -> None:
            """Wait until more runs have ended, each with a last step by this release."""
            query = f"""
                select count(*) from holdfast.events
                where event_type = 'StepCompleted'
                    and details -> 'result' ->> 'release' like '{release}%'
            """
            ended = "select count(*) from holdfast.runs where status = 'completed'"
            steps, runs = count(query) + RUNS, count(ended) + RUNS
            await until(lambda: count(query) >= steps and count(ended) >= runs)

        old.migrate()
        old_workers = await old.workers()
        old_server, address = old.server()
        load = Load((tmp_path / ".holdfast" / "server.key").read_text().strip())
        load.servers.append(address)
        await load.make_queue()
        async with load.going_on():
            await more_end("old")
            await asyncio.to_thread(new.migrate)
            await more_end("old")  # on the new schema, over the old server
            commands = ("worker", "shop.py:app"), ("server", "--port", "0"), ("migrate",)
            for refused in [old.run(*command) for command in commands]:
                assert await asyncio.to_thread(refused.ended) == exits.DATABASE
                assert "upgrade holdfast" in refused.text()
            new_workers = await new.workers()
            new_server, address = await asyncio.to_thread(new.server)
            load.servers.append(address)
            await more_end("new")
            for worker in new_workers:  # the way back: the old ones continue with what these began
                worker.send(signal.SIGTERM)
                assert await asyncio.to_thread(worker.ended) == 0, worker.text()
            await more_end("old")
            new_workers = await new.workers()
            await more_end("new")
            await load.leave(load.servers[0])
            for process in (old_server, *old_workers):
                process.send(signal.SIGTERM)
                assert await asyncio.to_thread(process.ended) == 0, process.text()
            await more_end("new")
        await until(
            lambda: count("select count(*) from holdfast.runs where status = 'running'") == 0
        )
        assert new_server.popen.poll() is None
        assert [each.popen.poll() for each in new_workers] == [None] * WORKERS

        executions, seen = read_ledger(tmp_path / "ledger"), Counter[str]()
        releases = Counter[str]()
        async with Client(empty_database_url) as client:
            runs = [run async for run in client.runs.iterate(names="crash/order", limit=1000)]
            for run in runs:
                log = await client.runs.log(run.run_id)
                seen += check_run(await client.runs.get(run.run_id), log, executions)
                makers = {
                    json.loads(entry.event.details or "null")["result"]["release"]
                    for entry in log
                    if entry.event.type in ("StepCompleted", "ActivityCompleted")
                }
                releases[" ".join(sorted(makers))] += 1
            flows = [
                await client.runs.get(run.run_id)
                async for run in client.runs.iterate(names="crash/sums", limit=1000)
            ]
            ticks = await client.schedules.ticks("crash/ticks", limit=1000)
            [letters] = await client.queues.metrics("letters")
        assert {run.run_id for run in runs} == set(load.runs["order"]), "a start was lost"
        assert {run.run_id for run in flows} == set(load.runs["sums"]), "a start was lost"
        totals = [{"total": 10 * cast("int", run.input)} for run in flows]
        assert [run.output for run in flows] == totals
        read = {key: len(each) for key, each in executions.items() if key.startswith("letter")}
        assert read == dict.fromkeys(load.letters, 1)
        assert letters.due + letters.delayed + letters.in_flight == 0
        # A tick is skipped if no worker is in time for it, as on a machine with other work to do.
        assert {tick.outcome for tick in ticks} <= {"started", "skipped"}
        started = [tick.run_id for tick in ticks if tick.outcome == "started"]
        assert len(started) > len(ticks) / 2
        assert len(set(started)) == len(started), "two ticks have one run"
        pauses = {later.at - (tick.until or tick.at) for later, tick in pairwise(ticks)}
        assert pauses == {timedelta(seconds=1)}, "a tick was lost, or came twice"
        assert seen["lost"] == 0, "a worker that was stopped in order lost a run"
        assert releases["old"] > 0
        assert releases["new"] > 0
        assert releases["new old"] > 0, "no run was begun by one release and continued by the other"
        for process in (*old_workers, *new_workers, old_server, new_server):
            assert "Traceback" not in process.text(), process.text()
        assert not load.failures, load.failures
