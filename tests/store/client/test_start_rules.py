"""Starts of workflows with rules, through the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest

from holdfast import Context, Debounce, Singleton, Throttle
from holdfast.client import Client
from holdfast.definitions.app import App
from holdfast.definitions.start_rules import RuleOptions
from holdfast.definitions.workflows import declared_rules
from holdfast.errors import ConfigurationError, RunActive, StartThrottled
from holdfast.payloads import Zlib
from holdfast.store.port import Store
from holdfast.values.moments import to_datetime

app = App("shop")


@dataclass(frozen=True)
class Order:
    customer: str
    number: int = 1


@app.workflow(singleton=Singleton(key="input.customer"))
async def sync(ctx: Context, order: Order) -> int:
    return order.number


@pytest.fixture
async def stranger(store: Store) -> AsyncIterator[Client]:
    """Provide a client that does not have the code."""
    async with Client(store=store) as client:
        yield client


async def test_start_that_is_refused_raises_and_names_the_active_run(client: Client) -> None:
    first = await client.start(sync, Order("ann"))
    with pytest.raises(RunActive, match=f"run {first.run_id} of workflow shop/sync") as refused:
        await client.start(sync, Order("ann", 2))
    assert refused.value.run_id == first.run_id
    with pytest.raises(RunActive):
        await client.run(sync, Order("ann", 2))
    await client.start(sync, Order("bob"))


async def test_start_by_name_obeys_what_a_worker_has_declared(
    store: Store, stranger: Client
) -> None:
    await store.declare_start_rules(declared_rules(app.registry))
    first = await stranger.start("shop/sync", {"customer": "ann"})
    with pytest.raises(RunActive) as refused:
        await stranger.start("shop/sync", {"customer": "ann"})
    assert refused.value.run_id == first.run_id


async def test_start_may_ask_for_the_active_run_instead(client: Client) -> None:
    first = await client.start(sync, Order("ann"))
    instead = Singleton(key="input.customer", on_conflict="return")
    second = await client.start(sync, Order("ann", 2), singleton=instead)
    assert (second.run_id, second.already_existed) == (first.run_id, True)
    assert (await second.get()).input == Order("ann")


async def test_many_starts_start_what_they_can_and_then_raise(client: Client) -> None:
    with pytest.raises(RunActive):
        await client.start_many(sync, [Order("ann"), Order("ann"), Order("bob")])
    assert len((await client.runs.list()).runs) == 2


def test_key_that_no_input_has_is_refused_at_the_definition() -> None:
    with pytest.raises(ConfigurationError, match=r"sync: singleton: .*Order, has no field 'custm"):
        App("a").workflow(singleton=Singleton(key="input.custmer"))(sync.fn)


@pytest.mark.parametrize("index", ["0", "-1"])
def test_key_may_be_an_element_of_an_input_that_is_a_list(index: str) -> None:
    @App("a").workflow(singleton=Singleton(key=f"input.{index}"))
    async def pack(ctx: Context, lines: list[str]) -> None: ...


@pytest.mark.parametrize("path", ["customer", "input.", "input..a", "in put", "input.a b", ""])
def test_key_that_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a path into the input"):
        Singleton(key=path)


def test_unknown_conflict_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="on_conflict is 'refuse', 'return', 'queue'"):
        Singleton(on_conflict="explode")  # type: ignore[arg-type]


@app.workflow(debounce=Debounce("5s", key="input.customer", max_wait="1m"))
async def index(ctx: Context, order: Order) -> int:
    return order.number


@app.workflow(throttle=Throttle(1, per="1h", key="input.customer", on_excess="refuse"))
async def remind(ctx: Context, order: Order) -> int:
    return order.number


@app.workflow(singleton=Singleton(on_conflict="queue"))
async def rebuild(ctx: Context) -> None: ...


async def test_debounced_starts_return_one_handle_and_why_says_until_when(client: Client) -> None:
    first = await client.start(index, Order("ann", 1))
    second = await client.start(index, Order("ann", 2))
    assert (second.run_id, second.already_existed) == (first.run_id, True)
    assert (await second.get()).input == Order("ann", 2)
    because = (await client.why(first.run_id)).because
    assert because.startswith("it is debounced: it begins at ")


async def test_throttled_start_raises_and_says_until_when(client: Client, store: Store) -> None:
    before = to_datetime(await store.now())
    await client.start(remind, Order("ann"))
    with pytest.raises(StartThrottled, match="as often as its throttle allows") as refused:
        await client.start(remind, Order("ann"))
    assert before < refused.value.until < before + timedelta(hours=1, minutes=10)
    later = Throttle(1, per="1h", key="input.customer")
    delayed = await client.start(remind, Order("ann"), throttle=later)
    assert (await client.why(delayed.run_id)).because.startswith("it is throttled: ")


async def test_why_names_the_active_run_of_a_singleton_and_the_runs_before(client: Client) -> None:
    runs = [await client.start(rebuild) for _ in range(3)]
    found = await client.why(runs[2].run_id)
    assert f"run {runs[0].run_id}" in found.because
    assert found.because.endswith(", and 1 wait before it")
    assert [action.do for action in found.actions] == ["why"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Debounce(0), "quiet is more than 0 s"),
        (lambda: Debounce("5s", max_wait="4s"), "max_wait is shorter than quiet"),
        (
            lambda: Throttle(0, per="1m"),
            "limit: a whole number from 1 to 1,000,000 is needed, not 0",
        ),
        (lambda: Throttle(1, per=0), "per is more than 0 s"),
        (lambda: Throttle(1, per="1m", on_excess="drop"), "on_excess is 'delay', 'refuse'"),
    ],
)
def test_rules_that_cannot_work_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_key_of_an_input_that_is_encoded_is_refused() -> None:
    app = App("a", payload_codec=Zlib())
    with pytest.raises(ConfigurationError, match="the database cannot look into inputs"):
        app.workflow(singleton=Singleton("input.customer"))(sync.fn)
    App("b", payload_codec=Zlib()).workflow(singleton=Singleton())(sync.fn)


def test_singleton_and_debounce_have_one_key() -> None:
    rules = RuleOptions(singleton=Singleton("input.customer"), debounce=Debounce("5s"))
    with pytest.raises(ConfigurationError, match="give both the same key"):
        App("a").workflow(**rules)(sync.fn)


async def test_client_lists_what_rules_hold(client: Client) -> None:
    first = await client.start(sync, Order("ann"))
    [held] = await client.workflows.held_keys(sync)
    assert (held.rule, held.key, held.run_id) == ("singleton", "ann", first.run_id)
