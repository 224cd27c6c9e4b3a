"""Workers that write streams are killed around each call: readers get one attempt, whole."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from holdfast.client import Client, RunHandle
from holdfast.store.postgres import PostgresStore
from holdfast.types import Restarted
from tests.crash import streaming
from tests.crash.processes import points_of
from tests.crash.streaming import VALUES

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]


async def follow(handle: RunHandle[object]) -> dict[str, list[str]]:
    """Read a stream to its end as an interface would; return what it shows then, by key."""
    shown: defaultdict[str, list[str]] = defaultdict(list)
    async for each in handle.stream_items("tokens", type=str, restarts=True):
        if isinstance(each, Restarted):
            shown.pop(each.key, None)
        else:
            shown[each.key].append(each.value)
    return dict(shown)


def is_whole(values: list[str]) -> bool:
    """Return True if these are all values of one process, in order."""
    return len({value.split()[0] for value in values}) == 1 and [
        int(value.split()[1]) for value in values
    ] == [*range(VALUES)]


async def test_kills_leave_each_reader_with_the_attempt_that_counts(database_url: str) -> None:
    """A reader that was there all the time, and one that comes when all is over."""
    store = PostgresStore(database_url)
    await store.open()
    async with Client(database_url, app=streaming.app) as client:
        passed, kill_at = 0, 0
        while not passed:
            kill_at += 1
            handle: Any = await client.start("talk")
            live = asyncio.create_task(follow(handle))
            given = (streaming.work, database_url, handle.run_id)
            passed = await asyncio.to_thread(points_of, *given, kill_at)
            if not passed:
                workers = [each.worker_id for each in await store.list_workers()]
                await store.reap_workers(worker_ids=workers)
                assert await asyncio.to_thread(points_of, *given, 0)
            late = await follow(handle)
            assert late.pop("") == ["code"], kill_at
            assert late.keys() == {"speak", "shout"}, kill_at
            assert all(map(is_whole, late.values())), (kill_at, late)
            async with asyncio.timeout(60):
                assert await live == {**late, "": ["code"]}, kill_at
        assert kill_at > 20
    await store.close()


# What is recorded next after each line of the code.
NEXT = {"one": "StepCompleted", "two": "TimerScheduled", "three": "WorkflowCompleted"}


async def test_kills_write_no_line_of_a_log_twice(database_url: str) -> None:
    """And no run fails of it. What a killed worker had not sent yet may be missing.

    What the code does after the last entry is done again: that is not a replay.
    """
    store = PostgresStore(database_url)
    await store.open()
    async with Client(database_url, app=streaming.app) as client:
        passed, kill_at = 0, 0
        while not passed:
            kill_at += 1
            handle: Any = await client.start("grumble")
            given = (streaming.work, database_url, handle.run_id)
            passed = await asyncio.to_thread(points_of, *given, kill_at)
            recorded = {entry.event.type for entry in await client.runs.log(handle.run_id)}
            if not passed:
                workers = [each.worker_id for each in await store.list_workers()]
                await store.reap_workers(worker_ids=workers)
                assert await asyncio.to_thread(points_of, *given, 0)
            assert await handle.status() == "completed"
            lines = (await client.runs.read_log_lines(handle.run_id)).lines
            said = [each.message for each in lines]
            for line, entry in NEXT.items():
                assert said.count(line) <= 1 + (entry not in recorded), (line, kill_at)
            newest = list(dict.fromkeys(each for each in reversed(said) if each in NEXT))
            assert newest[::-1] == [each for each in NEXT if each in newest]
            assert passed == 0 or len(said) == 4
        assert kill_at > 5
    await store.close()
