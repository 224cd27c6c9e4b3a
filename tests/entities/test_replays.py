"""What a replay knows of the calls that were answered, which it does not run again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

from holdfast import App, Client, Context, current_context
from holdfast.errors import UpdateFailed
from holdfast.runtime.code import entities
from holdfast.store.port import Store
from holdfast.worker import Worker

app = App("replays")
KEY = ("replays/Talk", "ann")


@app.step
async def note(text: str) -> str:
    return text


@app.entity
@dataclass
class Counter:
    number: int = 0

    async def count(self) -> int:
        self.number += 1
        return self.number


@app.entity
@dataclass
class Talk:
    heard: list[str] = field(default_factory=list)
    drawn: str = field(default_factory=lambda: uuid4().hex)

    async def listen(self, timeout: float = 60) -> list[str]:
        async with asyncio.timeout(timeout):
            self.heard.append(str(await ctx().wait_for_signal("said")))
        return self.heard

    async def hear_news(self) -> str:
        return str((await ctx().wait_for_event("news.*")).payload)

    async def count(self) -> int:
        return await ctx().entity(Counter, "one").count()

    async def progress(self, value: int, name: str = "progress") -> None:
        ctx().set_value(name, value)

    async def repeat(self) -> str:
        """Wait twice on the path that the first call of the run has taken."""
        name = "new" if ctx().patched("other") else "old"
        await note(f"{name} {self.drawn}")
        await asyncio.sleep(0.5)
        return await note(f"{name} {self.drawn}")

    async def leave(self) -> str:
        """Return before its task has ended."""

        async def later() -> None:
            try:
                await asyncio.sleep(60)
                self.heard.append("later")
            finally:
                await note("cleaned up")

        self.heard.append("now")
        self.task = asyncio.create_task(later())
        del self.task
        await asyncio.sleep(0)
        return "left"


def ctx() -> Context:
    found = current_context()
    assert found is not None
    return found


@asynccontextmanager
async def working(store: Store) -> AsyncIterator[None]:
    worker = Worker(app, store)
    await worker.start()
    yield
    await worker.stop(0)


async def count(client: Client, kind: str) -> int:
    """Return how many entries of a kind the log of the newest run has."""
    listed = await client.runs.list(names="replays/Talk", states=["running", "waiting"])
    if not listed.runs:
        return 0
    log = await client.handle(listed.runs[0].run_id).log()
    return sum(each.event.type == kind for each in log)


async def until(client: Client, kind: str, number: int = 1) -> None:
    """Wait until the log has so many entries of a kind."""
    async with asyncio.timeout(8):
        while await count(client, kind) < number:
            await asyncio.sleep(0.02)


async def test_a_message_is_taken_once(store: Store, client: Client) -> None:
    talk = client.entity(Talk, "ann", timeout=8)
    async with working(store):
        listening = asyncio.create_task(talk.listen())
        await until(client, "UpdateAccepted")
        await client.signal(KEY, "said", "first")
        await client.signal(KEY, "said", "second")
        assert await listening == ["first"]
    async with working(store):
        assert await talk.listen() == ["first", "second"]
    async with working(store):
        with pytest.raises(UpdateFailed, match="TimeoutError"):
            await talk.listen(0.1)


async def test_an_event_is_taken_once(store: Store, client: Client) -> None:
    talk = client.entity(Talk, "ann", timeout=8)
    async with working(store):
        hearing = asyncio.create_task(talk.hear_news())
        await until(client, "EventSubscribed")
        await client.topics.publish("news.first", 1)
        assert await hearing == "1"
    async with working(store):
        assert await talk.repeat() == f"new {(await client.entities.get(Talk, 'ann')).drawn}"
        hearing = asyncio.create_task(talk.hear_news())
        await client.topics.publish("news.second", 2)
        assert await hearing == "2"
    assert (await client.runs.get(KEY)).state == "waiting"


async def test_answers_to_answered_calls_do_not_pile_up(
    store: Store, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entities, "MOST_CALLS", 3)
    talk = client.entity(Talk, "ann", timeout=8)
    for expected in range(1, 8):
        async with working(store):
            assert await talk.count() == expected
    assert await count(client, "SignalReceived") == 2  # a call, and its answer


async def test_values_of_later_calls_are_written(store: Store, client: Client) -> None:
    talk = client.entity(Talk, "ann", timeout=8)
    async with working(store):
        await talk.progress(1)
    async with working(store):
        await talk.progress(2)
        assert (await client.handle(KEY).values())["progress"] == 2


async def test_the_value_of_the_state_is_refused(store: Store, client: Client) -> None:
    """Fault: a replay took it for the state after the call, and lost an answered change."""
    talk = client.entity(Talk, "ann", timeout=8)
    async with working(store):
        with pytest.raises(UpdateFailed, match="value 'state' of an entity is its state"):
            await talk.progress(1, "state")
        first = await talk.repeat()
    async with working(store):
        assert await talk.repeat() == first
        assert await client.handle(KEY).values() == {
            "state": {"heard": [], "drawn": first.removeprefix("new ")}
        }


async def test_a_call_in_flight_stays_on_its_path(store: Store, client: Client) -> None:
    talk = client.entity(Talk, "ann", timeout=8)
    async with working(store):
        first = await talk.repeat()
        assert first.startswith("new ")
        calling = asyncio.create_task(talk.repeat())
        await until(client, "UpdateAccepted", 2)
        await asyncio.sleep(0.1)
    async with working(store):
        assert await calling == first


async def test_what_the_first_state_has_drawn_is_kept(store: Store, client: Client) -> None:
    talk = client.entity(Talk, "ann", timeout=8)
    async with working(store):
        calling = asyncio.create_task(talk.repeat())
        await until(client, "UpdateAccepted")
        await asyncio.sleep(0.1)
    drawn = (await client.entities.get(Talk, "ann")).drawn
    assert (await client.entities.get(Talk, "ann")).drawn == drawn
    async with working(store):
        assert await calling == f"new {drawn}"


async def test_a_call_that_leaves_a_task_fails(store: Store, client: Client) -> None:
    talk = client.entity(Talk, "ann", timeout=8)
    async with working(store):
        with pytest.raises(UpdateFailed, match=r"Talk\.leave has left the task .*later.* await it"):
            await talk.leave()
    async with working(store):
        await talk.repeat()
        assert (await client.runs.get(KEY)).state == "waiting"
    assert (await client.entities.get(Talk, "ann")).heard == []
