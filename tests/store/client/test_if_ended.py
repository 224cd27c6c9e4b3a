"""A key that was used: its run is returned, another run is started, or the start is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from holdfast.client import Client
from holdfast.client.chains import newest_of_key
from holdfast.errors import ConfigurationError, RunEnded
from holdfast.store.port import Store

from .workflows import Finisher, tick


async def test_a_used_key_does_what_its_policy_says(client: Client, finisher: Finisher) -> None:
    """While the run is open all policies return it; the newest run is that of the key."""
    first = await client.start(tick, key="a", if_ended="start")
    assert not first.already_existed
    for policy in ("return", "start", "refuse"):
        same = await client.start(tick, key="a", if_ended=policy)
        assert (same.run_id, same.already_existed) == (first.run_id, True)
    await finisher.complete(1, least=1)
    assert (await client.start(tick, key="a")).run_id == first.run_id
    with pytest.raises(RunEnded) as refused:
        await client.start(tick, key="a", if_ended="refuse")
    assert refused.value.run_id == first.run_id
    second = await client.start(tick, key="a", if_ended="start")
    assert (second.run_id != first.run_id, second.already_existed) == (True, False)
    assert (await second.get()).key == "a"
    assert (await client.start(tick, key="a", if_ended="start")).run_id == second.run_id
    assert (await client.start(tick, key="a", if_ended="refuse")).run_id == second.run_id
    assert (await client.runs.get((tick, "a"))).run_id == second.run_id
    await finisher.complete(2, least=1)
    assert await client.handle((tick, "a"), tick).result() == 2
    assert [run.run_id async for run in client.runs.iterate(key="a")] == [
        second.run_id,
        first.run_id,
    ]
    third = await client.start(tick, key="a", if_ended="start")
    assert third.run_id not in (first.run_id, second.run_id)


async def test_a_run_that_was_retried_or_started_again_leads_to_one_next_run(
    client: Client, finisher: Finisher
) -> None:
    """A retry of the run that failed is the run of its key, and so is the next run of the key."""
    first = await client.start(tick, key="a")
    await finisher.fail(ValueError("no"))
    retried = await client.runs.retry(first.run_id)
    assert (await client.start(tick, key="a", if_ended="start")).run_id == retried.run_id
    await finisher.fail(ValueError("no"))
    again = await client.start(tick, key="a", if_ended="start")
    assert not again.already_existed
    assert (await client.runs.retry(retried.run_id)).run_id == again.run_id
    assert (await client.runs.retry((tick, "a"))).run_id == again.run_id


async def test_a_key_that_was_used_often_takes_few_questions(
    client: Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for _ in range(40):
        handle = await client.start(tick, key="a", if_ended="start")
        await client.runs.terminate(handle.run_id)
        made.append(handle.run_id)
    assert len(set(made)) == 40
    asked, get_runs = 0, store.get_runs

    async def count(run_ids: Sequence[UUID], *, payloads: bool = True) -> Any:
        nonlocal asked
        asked += 1
        return await get_runs(run_ids, payloads=payloads)

    monkeypatch.setattr(store, "get_runs", count)
    assert await newest_of_key(store, made[0]) == made[-1]
    assert asked <= 8


async def test_the_newest_run_of_a_key_is_read_once(
    client: Client, finisher: Finisher, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.start(tick, key="a")
    await finisher.complete(1, least=1)
    second = await client.start(tick, key="a", if_ended="start")
    get_runs, read = store.get_runs, list[tuple[UUID, bool]]()

    async def note(run_ids: Sequence[UUID], *, payloads: bool = True) -> Any:
        found = await get_runs(run_ids, payloads=payloads)
        read.extend((run_id, payloads) for run_id in found)
        return found

    monkeypatch.setattr(store, "get_runs", note)
    assert (await client.start(tick, key="a", if_ended="start")).run_id == second.run_id
    assert read == [(second.run_id, False)]


async def test_starts_that_race_after_the_end_make_one_run(
    client: Client, finisher: Finisher
) -> None:
    """Alone, together, and with a retry."""
    await client.start_many(tick, [None] * 3, keys=["a", "b", "c"])
    await finisher.fail(ValueError("no"))
    started = await asyncio.gather(
        *(client.start(tick, key="a", if_ended="start") for _ in range(20)),
        *(client.start_many(tick, [None] * 2, keys=["b", "a"], if_ended="start") for _ in "12"),
        client.runs.retry((tick, "a")),
    )
    flat = [each for some in started for each in (some if isinstance(some, list) else [some])]
    assert len({each.run_id for each in flat}) == 2
    assert [each.already_existed for each in flat].count(False) == 2
    with pytest.raises(RunEnded):
        await client.start_many(tick, [None] * 2, keys=["a", "c"], if_ended="refuse")


async def test_a_run_is_kept_while_the_next_run_of_its_key_is(
    client: Client, finisher: Finisher, store: Store
) -> None:
    """Else the key would be free, and lead to a third run beside the second."""
    first = await client.start(tick, key="a", retention=0)
    await finisher.complete(1, least=1)
    second = await client.start(tick, key="a", if_ended="start", retention=0)
    assert (await store.sweep_runs()).deleted == 0
    assert (await client.start(tick, key="a")).run_id == first.run_id
    assert (await client.start(tick, key="a", if_ended="start")).run_id == second.run_id


async def test_run_waits_for_the_next_run_of_a_key(client: Client, finisher: Finisher) -> None:
    await client.start(tick, key="a")
    await finisher.complete(1, least=1)
    waiting = asyncio.create_task(client.run(tick, key="a", if_ended="start"))
    await finisher.complete(2, least=1)
    assert await waiting == 2
    assert await client.run(tick, key="a") == 2
    with pytest.raises(RunEnded):
        await client.run(tick, key="a", if_ended="refuse")


@pytest.mark.parametrize(
    "options", [{"if_ended": "start"}, {"if_ended": "x", "key": "a"}, {"if_ended": "refuse"}]
)
async def test_a_policy_without_a_key_is_refused(client: Client, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        await client.start(tick, **options)
    assert (await client.runs.list()).runs == []
