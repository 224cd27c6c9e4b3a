"""Calls of entities, on both stores."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from holdfast import App, Client, InvalidInput, ResultTimeout, SyncClient, reads
from holdfast.codec import MAX_PAYLOAD
from holdfast.errors import ConfigurationError, RunEnded, RunFailed, UpdateFailed, UpdateRejected
from holdfast.insight.actions import Action
from holdfast.payloads import Zlib
from holdfast.runtime.code import entities
from holdfast.store.memory import MemoryStore
from holdfast.store.memory.clock import wall_clock
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.testing import Environment
from holdfast.types import UPDATE_REPLY
from holdfast.worker import Worker
from tests.entities.carts import Cart, Memo, app, checked, shop


@asynccontextmanager
async def working(store: Store) -> AsyncIterator[None]:
    """Run a further worker."""
    worker = Worker(app, store)
    await worker.start()
    yield
    await worker.stop(0)


async def events_of(client: Client, key: str = "ann") -> list[str]:
    return [each.event.type for each in await client.handle((entity(), key)).log()]


def entity() -> str:
    return "carts/Cart"


async def begin_to_buy(client: Client) -> asyncio.Task[str]:
    """Begin a call that waits: those that come after it are carried out after it."""
    buying = asyncio.create_task(client.entity(Cart, "ann").buy(1))
    async with asyncio.timeout(30):
        while (await events_of(client))[-1] != "TimerScheduled":
            await asyncio.sleep(0.02)
    return buying


async def test_changes_and_reads(worker: Worker, client: Client) -> None:
    cart = client.entity(Cart, "ann")
    assert await cart.total() == 0
    assert await cart.add("lamp") == 1
    assert await cart.add("vase", number=2) == 3
    assert await cart.total() == 3
    assert (await client.entities.get(Cart, "ann")).items == {"lamp": 1, "vase": 2}
    assert await client.entity(Cart, "bob").total() == 0


async def test_the_run_of_a_key_is_named_by_its_class(worker: Worker, client: Client) -> None:
    await client.entity(Cart, "ann").add("lamp")
    named = (Cart, "ann")
    run = await client.runs.get((entity(), "ann"))
    assert await client.runs.get(named) == run
    assert await client.handle(named).log() == await client.handle(run.run_id).log()
    assert (await client.why(named)).run_id == run.run_id
    assert await client.runs.cancel(named) is True
    with pytest.raises(ConfigurationError, match="Worker is not an entity"):
        await client.runs.get((Worker, "ann"))
    with pytest.raises(InvalidInput, match=r"7 is not a workflow: pass the decorated function"):
        await client.runs.get((7, "ann"))  # type: ignore[arg-type]


async def test_a_read_wakes_nothing(worker: Worker, client: Client) -> None:
    cart = client.entity(Cart, "ann")
    await cart.add("lamp")
    before = await events_of(client)
    assert [await cart.total() for _ in range(3)] == [1, 1, 1]
    assert await events_of(client) == before


async def test_a_read_needs_no_worker(client: Client) -> None:
    assert await client.entity(Cart, "ann").total() == 0
    assert (await client.runs.list()).runs == []


async def test_a_change_that_raises_changes_nothing(worker: Worker, client: Client) -> None:
    cart = client.entity(Cart, "ann")
    await cart.add("lamp")
    whose = r"update add of carts/Cart 'ann' \(run \S+\) failed: .*ValueError: at least one"
    with pytest.raises(UpdateFailed, match=whose) as caught:
        await cart.add("hole", -1)
    assert caught.value.entity == "carts/Cart 'ann'"
    with pytest.raises(UpdateFailed, match="no luck"):
        await cart.fail()
    assert (await client.entities.get(Cart, "ann")).items == {"lamp": 1}
    assert await cart.add("lamp") == 2


async def test_fifty_callers_of_one_key(worker: Worker, client: Client, store: Store) -> None:
    async with working(store), Client(store=store) as other:
        carts = [each.entity(Cart, "ann") for each in (client, other)]
        found = await asyncio.gather(*(carts[n % 2].add(f"i{n % 7}") for n in range(50)))
    assert sorted(found) == list(range(1, 51))
    assert await carts[0].total() == 50


async def test_a_call_id_is_carried_out_once(worker: Worker, client: Client) -> None:
    once = client.entity(Cart, "ann", call_id="click-1")
    assert await asyncio.gather(once.add("lamp"), once.add("lamp"), once.add("lamp")) == [1, 1, 1]
    assert await client.entity(Cart, "ann").add("lamp") == 2
    assert await once.add("lamp") == 1


async def test_continuing_keeps_the_state_the_calls_and_their_ids(
    worker: Worker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entities, "MOST_CALLS", 7)
    once = client.entity(Cart, "ann", call_id="click-1")
    assert await once.add("lamp") == 1
    cart = client.entity(Cart, "ann")
    found = await asyncio.gather(*(cart.add(f"i{n % 7}") for n in range(40)))
    assert sorted(found) == list(range(2, 42))
    assert await once.add("lamp") == 1
    async with Client(store=client._session.store) as new:  # which knows no newest run
        assert await new.entity(Cart, "ann").total() == 41
        assert await new.entity(Cart, "ann").add("lamp") == 42
    runs = (await client.runs.list()).runs
    assert len(runs) > 4
    assert [run.status for run in runs].count("running") == 1


async def test_retention_keeps_the_first_and_the_newest_run(
    store: Store, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entities, "MOST_CALLS", 5)
    kept = App("kept")

    @kept.entity(retention="100ms")
    @dataclass
    class Counter:
        count: int = 0

        async def add(self) -> int:
            self.count += 1
            return self.count

    worker = Worker(kept, store)
    await worker.start()
    counter = client.entity(Counter, "ann")
    for each in range(1, 33):
        assert await counter.add() == each
    await asyncio.sleep(0.2)
    assert (await store.sweep_runs()).deleted == 5
    assert len((await client.runs.list()).runs) == 2
    assert await counter.add() == 33  # of a client that remembers a run that is there
    async with Client(store=store) as new:
        assert (await new.entities.get(Counter, "ann")).count == 33
        assert await new.entity(Counter, "ann", call_id="c").add() == 34
        assert await new.entity(Counter, "ann", call_id="c").add() == 34
        assert await new.entities.delete(Counter, "ann")
        assert await new.entity(Counter, "ann").add() == 1
    await worker.stop(0)


async def test_a_workflow_calls_an_entity(worker: Worker, client: Client) -> None:
    run = await client.start(shop, "ann")
    async with asyncio.timeout(30):
        while len((await client.entities.get(Cart, "ann")).items) < 2:
            await asyncio.sleep(0.05)
    assert await client.entity(Cart, "ann").total() == 3
    await run.cancel()


async def test_a_workflow_is_told_that_what_it_has_called_was_terminated(
    worker: Worker, client: Client
) -> None:
    await client.entity(Cart, "ann").add("lamp")
    buying = await begin_to_buy(client)
    run = await client.start(shop, "ann")
    async with asyncio.timeout(30):
        while [each.event.key for each in await run.log()][-1] != "Cart.add":
            await asyncio.sleep(0.02)
        found = await client.why(run.run_id)
        cart = (await client.runs.get((entity(), "ann"))).run_id
        assert (found.because, found.details, found.actions) == (
            "it waits for the answer of an entity",
            (f"call Cart.add: run {cart} of carts/Cart 'ann' is waiting",),
            (Action("why", cart),),
        )
        assert await client.runs.terminate((entity(), "ann"))
        with pytest.raises(RunFailed, match=r"'ann' \(run \S+\) refused update add: .*RunEnded"):
            await run.result()
        with pytest.raises(RunEnded):
            await buying


async def test_delete(worker: Worker, client: Client) -> None:
    cart = client.entity(Cart, "ann")
    assert not await client.entities.delete(Cart, "ann")
    await cart.add("lamp")
    assert await client.entities.delete(Cart, "ann")
    assert await cart.add("vase") == 1
    assert (await client.entities.get(Cart, "ann")).items == {"vase": 1}
    once = client.entity(Cart, "ann", call_id="late")
    buying = await begin_to_buy(client)
    late = asyncio.create_task(once.add("rug"))
    assert await client.entities.delete(Cart, "ann", "closed")
    with pytest.raises(UpdateFailed, match="Cancelled"):
        await buying
    assert await late == 1  # it had not begun: a new object took it
    assert (await client.entities.get(Cart, "ann")).items == {"rug": 1}


async def test_a_state_with_which_no_run_could_continue_is_refused(
    worker: Worker, client: Client
) -> None:
    """Fault: the run failed as it continued, a retry as well, and the entity was lost."""
    memo = client.entity(Memo, "m")
    await memo.write("a")
    largest = MAX_PAYLOAD - len('{"key":"m","text":""}')
    with pytest.raises(UpdateFailed, match="more than the limit"):
        await memo.write(largest * "x")
    assert await memo.swap("b") == {"before": "a"}
    await memo.write((largest - 20) * "x")
    assert await memo.write("c") is None


async def test_a_caller_goes_to_the_run_that_says_that_it_has_answered(
    worker: Worker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: each caller read the logs of all runs between, and 1,500 callers took minutes."""
    monkeypatch.setattr(entities, "MOST_CALLS", 1)
    session = client._session
    ids, replies = [f"click-{number}" for number in range(6)], session.replies
    for key in ("ann", "bob"):
        found = [await client.entity(Cart, key, call_id=each).add("lamp") for each in ids]
        assert found == [1, 2, 3, 4, 5, 6]
    runs = {key: (await client.runs.list(tags=[key])).runs for key in ("ann", "bob")}
    first, last = runs["ann"][-1].run_id, runs["ann"][1].run_id

    def find(woken: asyncio.Event, **options: Any) -> Awaitable[str]:
        limit = asyncio.timeout(60)
        return replies.find(first, "click-5", woken, limit, delivered=False, **options)

    monkeypatch.setattr(session.store, "get_runs", None)  # it would ask for each run
    with replies.expect("click-5") as woken:
        replies._hear(f"{last} click-5")
        assert await find(woken) == "6"
    monkeypatch.undo()
    with replies.expect("click-5") as woken:  # of an answer that was not recorded
        replies._hear(f"{runs['ann'][3].run_id} click-5")
        assert await find(woken) == "6"
    monkeypatch.setattr(session.store, "read_events", None)  # it would read each log
    assert await find(asyncio.Event(), entity="carts/Cart 'ann'") == "6"
    with replies.expect("click-0") as woken:  # of another entity
        replies._hear(f"{runs['bob'][-1].run_id} click-0")
        assert await replies._ask(first, "click-0") != runs["bob"][-1].run_id


async def test_what_is_refused(worker: Worker, client: Client) -> None:
    cart = client.entity(Cart, "ann")
    with pytest.raises(InvalidInput, match="key is empty"):
        client.entity(Cart, "")
    with pytest.raises(TypeError, match=r"Cart\.add: missing a required argument: 'item'"):
        await cart.add()  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match=r"arguments of Cart\.add"):
        await cart.add("lamp", "many")  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="does not have its state here"):
        _ = cart.items
    with pytest.raises(AttributeError, match="has no method 'take'; it has add"):
        cart.take()  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match="changes the state"):
        await cart.spoil()
    with pytest.raises(ConfigurationError, match=r"Cart\.wait is a read, and waits"):
        await cart.wait()
    with pytest.raises(ConfigurationError, match="int is not an entity"):
        client.entity(int, "ann")
    with pytest.raises(UpdateFailed, match=r"Cart\.unknown is not a field"):
        await cart.remember(1)
    with pytest.raises(UpdateFailed, match="state of Cart"):
        await cart.misuse()
    assert await cart.total() == 0


async def test_a_method_that_the_class_does_not_have(worker: Worker, client: Client) -> None:
    await client.entity(Cart, "ann").add("lamp")
    with pytest.raises(UpdateRejected, match="entity Cart has no method 'take'; it has add"):
        await client.update((entity(), "ann"), "take", timeout="10s")
    assert await client.update((entity(), "ann"), "add", {"item": "lamp"}, type=int) == 2
    with pytest.raises(UpdateRejected, match=r"arguments of Cart\.add"):
        await client.update((entity(), "ann"), "add", {"thing": "lamp"})
    assert await client.update((entity(), "ann"), "total") == 2


async def test_without_a_worker_a_caller_times_out_and_may_ask_again(
    client: Client, store: Store
) -> None:
    cart = client.entity(Cart, "ann", call_id="click-1", timeout=0.05)
    with pytest.raises(ResultTimeout, match=r"answered add of carts/Cart 'ann'"):
        await cart.add("lamp")
    async with working(store):
        assert await client.entity(Cart, "ann", call_id="click-1").add("lamp") == 1


async def test_a_synchronous_client(database_url: str) -> None:
    def work() -> list[int]:
        with SyncClient(database_url) as client:
            cart = client.entity(Cart, "ann")
            return [
                cart.call(Cart.add, "lamp"),
                cart.call(Cart.total),
                len(client.entities.get(Cart, "ann").items),
                client.entities.delete(Cart, "ann"),
            ]

    store = PostgresStore(database_url, tells=True)
    await store.open()
    async with working(store):
        assert await asyncio.to_thread(work) == [1, 1, 1, True]
    await store.close()


async def test_an_object_may_be_started_by_its_name(worker: Worker, client: Client) -> None:
    await client.start(entity(), key="ann")
    assert await client.entity(Cart, "ann").add("lamp") == 1


async def test_why_does_not_say_that_a_call_that_has_begun_waits(
    worker: Worker, client: Client
) -> None:
    cart = client.entity(Cart, "ann")
    await cart.add("lamp")
    calling: list[asyncio.Task[object]] = [await begin_to_buy(client)]
    assert (await client.why((entity(), "ann"))).details == ()
    calling.append(asyncio.create_task(cart.add("rug")))
    while not (details := (await client.why((entity(), "ann"))).details):
        await asyncio.sleep(0.02)
    assert re.match(r"update 'add' came .*: no handler serves it now", details[0])
    for call in calling:
        call.cancel()


async def test_what_a_synchronous_client_says() -> None:
    def work() -> None:
        with SyncClient(store=MemoryStore(wall_clock)) as client:
            cart = client.entity(Cart, "ann")
            with pytest.raises(AttributeError, match=r"called as \.call\(Class\.add, …\)"):
                cart.add("lamp")  # type: ignore[attr-defined]
            with pytest.raises(TypeError, match=r"such as Cart\.add, not 'add'"):
                cart.call("add", "lamp")  # type: ignore[arg-type]
            assert repr(copy(cart)) == repr(cart)

    await asyncio.to_thread(work)


async def test_encoded_payloads() -> None:
    coded = App("coded", payload_codec=Zlib())

    @coded.entity
    @dataclass
    class Note:
        texts: list[str] = field(default_factory=list)

        async def write(self, text: str) -> int:
            self.texts.append(text * 100)
            return len(self.texts)

        @reads
        async def all(self) -> list[str]:
            return self.texts

    async with Environment(coded) as env:
        note = env.client.entity(Note, "ann")
        assert await note.write("a") == 1
        assert await note.all() == ["a" * 100]


async def test_states_and_answers_may_be_null(
    store: Store, worker: Worker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a workflow waited for ever for such an answer, and such a state ended its entity."""
    monkeypatch.setattr(entities, "MOST_CALLS", 3)
    found = await (await client.start("carts/write_memos", 4)).result(timeout=60)
    assert found == [None, {"before": None}] * 4
    assert (await client.entity(Memo, "m").swap("b")) == {"before": None}
    assert (await client.entities.get(Memo, "m")).text == "b"


@pytest.mark.parametrize("answered", ["before", "after"])
async def test_a_retry_gets_the_answer_to_a_call_of_the_run_that_failed(
    store: Store, worker: Worker, client: Client, answered: str
) -> None:
    """Fault: the answer was sent to the run that had failed, and the retry waited for ever."""
    failed = await run_in_haste(client)
    if answered == "before":
        async with asyncio.timeout(30):
            while "UpdateCompleted" not in await events_of(client):
                await asyncio.sleep(0.02)
    retry = await client.runs.retry(failed)
    assert await retry.result(timeout=30) == 1
    spans = (await client.timeline(retry.run_id)).spans
    assert [span.outcome for span in spans if span.kind == "entity"] == ["done"]
    fork = await client.runs.fork(failed, index=2)
    assert await fork.result(timeout=30) == 1
    assert (await client.entities.get(Cart, "ann")).items == {"rug": 1}, "it was made twice"


async def test_an_attempt_makes_no_change_again_that_its_log_lacks(
    worker: Worker, client: Client
) -> None:
    """Fault: the run had failed before it was recorded that the call was sent."""
    checked.clear()
    customers = [str(number) for number in range(20)]
    runs = [await client.start("carts/add_and_fail", each) for each in customers]
    assert [await run.result(timeout=60) for run in runs] == [1] * 20
    assert [await client.entity(Cart, each).total() for each in customers] == [1] * 20


async def test_a_retry_makes_no_change_again_that_its_log_lacks(
    worker: Worker, client: Client
) -> None:
    """The same of a run that was terminated as soon as the entity had the call."""

    async def cut_off(customer: str) -> None:
        run = await client.start("carts/add_one", customer)
        async with asyncio.timeout(30):
            while not (await client.runs.list(names=entity(), key=customer)).runs:
                await asyncio.sleep(0)
        await run.terminate()
        retry = await client.runs.retry(run.run_id)
        assert await retry.result(timeout=60) == 1
        assert await client.entity(Cart, customer).total() == 1

    await asyncio.gather(*(cut_off(str(number)) for number in range(6)))


async def test_a_retry_is_sent_the_answers_to_calls_that_it_makes(
    store: Store, client: Client
) -> None:
    """Fault: it looked for each of them in the log of the entity, up to ten minutes later."""
    run = await client.start("carts/add_one", "ann")
    await run.terminate()
    retry = await client.runs.retry(run.run_id)
    async with working(store):
        assert await retry.result(timeout=60) == 1
    assert "Cart.add_slowly.answer" not in [each.event.key for each in await retry.log()]


async def test_a_retry_is_told_of_a_call_that_will_not_be_answered(
    store: Store, worker: Worker, client: Client
) -> None:
    failed = await run_in_haste(client)
    await client.runs.terminate((entity(), "ann"))
    with pytest.raises(RunFailed, match=r"has ended \(terminated\)"):
        await (await client.runs.retry(failed)).result(timeout=30)


@pytest.mark.parametrize("payload", [None, 1, {"update_id": 1}, {"result": "a"}], ids=repr)
async def test_a_signal_that_is_no_answer_does_a_retry_no_harm(
    store: Store, worker: Worker, client: Client, payload: object
) -> None:
    """Fault: the retry was stuck, as it could not read what it had taken for an answer."""
    failed = await run_in_haste(client, payload)
    assert await (await client.runs.retry(failed)).result(timeout=30) == 1


async def run_in_haste(client: Client, *payloads: object) -> UUID:
    """Return a run that failed while a call of its had no answer, with such signals in its log."""
    checked.clear()
    handle = await client.start("carts/hasty", "ann")
    for payload in payloads:
        await handle.signal(UPDATE_REPLY, payload)
    assert (await client.runs.wait(handle.run_id, timeout=30)).status == "failed"
    return handle.run_id
