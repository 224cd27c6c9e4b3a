"""Hold what callers and readers were told, the logs and the traces outside against each other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

from holdfast.client import Client, Run
from holdfast.types import StreamItem
from tests.chaos.load import Load
from tests.chaos.names import (
    FIFO,
    GROUPS,
    PARCELS,
    READERS,
    SCHEDULES,
    STARTING,
    STREAM,
    TICKING,
    TOKENS,
)
from tests.chaos.readers import Note, read_notes
from tests.chaos.world import World
from tests.crash.ledger import (
    check_flows,
    check_nothing_is_queued,
    check_run,
    check_ticks,
    query_all,
    read_ledger,
)

MESSAGES = (PARCELS, FIFO)
NOT_BY_LOG = (
    "crash/sheet",
    "crash/stay",
    "crash/talk",
)  # a flow has no such log; others leave no trace


class Audit:
    """What was found; each check adds to it."""

    def __init__(self, world: World, load: Load, client: Client) -> None:
        self._world, self._load, self._client = world, load, client
        self.faults: list[str] = []
        self.seen = Counter[str]()

    async def check_all(self) -> None:
        """Check everything; a check that fails does not hide the others."""
        runs = [run async for run in self._client.runs.iterate(payloads=True)]
        async with self._checking("runs"):
            self._check_starts(runs)
        await self._check_logs(runs)
        async with self._checking("flows"):
            flows = [run for run in runs if run.full_name == "crash/sheet"]
            self.seen += check_flows(self._world, flows, self._world.ledger)
        async with self._checking("bookings"):
            self._check_bookings(runs)
        async with self._checking("messages"):
            self._check_messages(runs)
        async with self._checking("schedules"):
            check_ticks(self._world, SCHEDULES, f"{TICKING}%")
        async with self._checking("queues"):
            check_nothing_is_queued(self._world)
        async with self._checking("limits"):
            [limit] = await self._client.limits.list()
            assert (limit.held, limit.waiting) == (0, 0), f"places are held: {limit}"
        outputs = {run.run_id: run.output for run in runs}
        for how in READERS:
            notes = read_notes(self._world.notes(how))
            for run_id in map(str, self._told()):
                async with self._checking(f"the reader by the {how}, run {run_id}"):
                    await self._check_reader(how, run_id, notes.get(run_id, []), outputs)

    @asynccontextmanager
    async def _checking(self, what: str) -> AsyncGenerator[None]:
        try:
            yield
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            self.faults.append(f"{what}: {error!r:.600}")

    def _check_starts(self, runs: Sequence[Run]) -> None:
        """Each start that was acknowledged made one run, which ended as its caller was told."""
        by_id = {run.run_id: run for run in runs}
        keys = Counter((run.full_name, run.key) for run in runs if run.key is not None)
        assert not [key for key, count in keys.items() if count > 1], "a key has two runs"
        for run_id, kind in self._load.started.items():
            assert run_id in by_id, f"the {kind} {run_id} is gone"
        known = {run.key for run in runs}
        assert self._load.keys.keys() <= known, "a start is gone"
        for run_id, result in self._load.results.items():
            output = by_id[run_id].output
            assert output == result, f"{run_id}: {output!r} is not what the caller got: {result!r}"
        self.seen["runs"] += len(runs)
        begun = query_all(self._world, "select count(*) from holdfast.runs")
        assert all(count for (count,) in begun), f"a shard has no run: {begun}"

    async def _check_logs(self, runs: Sequence[Run]) -> None:
        """Each result was recorded once, and each effect is explained: see `check_run`."""
        executions = read_ledger(self._world.ledger)
        lines = map(json.loads, self._world.ledger.read_text().splitlines())
        given_back = {each["nonce"] for each in lines if each["pid"] in self._world.stopped}
        for run in runs:
            async with self._checking(f"{run.full_name} {run.run_id}"):
                assert run.status == "completed", f"{run.status}: {run.error} {run.wait}"
                if run.full_name not in NOT_BY_LOG:
                    log = await self._client.runs.log(run.run_id)
                    self.seen += check_run(run, log, executions, given_back)
        async with self._checking("traces"):
            known = {str(run.run_id) for run in runs} | set(MESSAGES)
            strangers = {id.partition("/")[0] for id in executions} - known
            assert not strangers, f"effects of no run: {strangers}"

    def _check_bookings(self, runs: Sequence[Run]) -> None:
        booked = [row for (row,) in query_all(self._world, "select run_id from public.booked")]
        stays = [str(run.run_id) for run in runs if run.full_name == "crash/stay"]
        assert sorted(booked) == sorted(stays), "a booking is missing, or there are two"
        self.seen["bookings"] += len(booked)

    def _check_messages(self, runs: Sequence[Run]) -> None:
        """None is lost, each receive is counted, groups keep their order, and each starts one run.

        A message that was received twice has another attempt each time.
        """
        received: dict[str, list[int]] = {}
        order: list[str] = []  # in which they were first consumed
        for line in self._world.ledger.read_text().splitlines():
            entry = json.loads(line)
            if entry["id"].partition("/")[0] in MESSAGES:
                if entry["id"] not in received:
                    order.append(entry["id"])
                received.setdefault(entry["id"], []).append(entry["attempt"])
        sent = {id for id in self._load.sent if id.partition("/")[0] in MESSAGES}
        assert received.keys() == sent, f"lost or unknown: {received.keys() ^ sent}"
        for id, attempts in received.items():
            assert len(set(attempts)) == len(attempts), f"{id}: attempts {attempts}"
            self.seen["messages"] += 1
            self.seen["received again"] += len(attempts) - 1
        for group in range(GROUPS):
            ids = [
                self._load.sent[id]
                for id in order
                if id.startswith(FIFO) and int(id.partition("/")[2]) % GROUPS == group
            ]
            assert all(a < b for a, b in pairwise(ids)), f"group {group} lost its order: {ids}"
        ships = [run for run in runs if run.full_name == "crash/ship"]
        by_message = [_input(run) for run in ships if "message" in run.tags]
        by_event = [_input(run) for run in ships if "message" not in run.tags]
        orders = [int(id.partition("/")[2]) for id in self._load.sent if id.startswith(STARTING)]
        assert sorted(by_message) == sorted(orders), "messages did not start one run each"
        assert sorted(by_event) == sorted(self._load.published), "events did not start one run each"
        left = sum(count for (count,) in query_all(self._world, f"select {LEFT}"))
        assert left == 0, f"{left} messages are left"

    def _told(self) -> list[str]:
        return self._world.told.read_text().splitlines()

    async def _check_reader(
        self, how: str, run_id: str, notes: Sequence[Note], outputs: Mapping[Any, Any]
    ) -> None:
        """It got each value once and in order; what it shows in the end is what counts."""
        shown: list[StreamItem[Any]] = []
        newest = 0
        for note in notes:
            told = note["told"]
            if note["what"] == "item":
                assert told["offset"] > newest, f"offset {told['offset']} after {newest}"
                newest = told["offset"]
                shown.append(StreamItem(**told))
                self.seen[f"values read by the {how}"] += 1
            elif note["what"] == "restarted":
                shown = [it for it in shown if it.key != told["key"] or it.offset <= told["after"]]
                self.seen[f"restarts told by the {how}"] += 1
        assert [note["what"] for note in notes[-1:]] == ["end"], "it was not told of the end"
        handle = self._client.handle(run_id)
        page = await handle.read_stream(STREAM, type=str, limit=1000)
        assert shown == page.items, f"it shows {shown}, and there is {page.items}"
        [first, second] = outputs[handle.run_id]
        spoken, shouted = ([f"{nonce} {n}" for n in range(TOKENS)] for nonce in (first, second))
        assert [it.value for it in shown] == [*spoken, "between", *shouted], "not what was written"


LEFT = """
(select count(*) from holdfast.messages) + (select count(*) from holdfast.grouped_messages)
    + (select count(*) from holdfast.filtered_messages)
"""


def _input(run: Run) -> int:
    assert isinstance(run.input, int)
    return run.input
