"""Steps of flows that are given what does not fit their code: held after a deploy, or failed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from holdfast import App, Client, current_flow_step
from holdfast.errors import RunFailed
from holdfast.insight.check import Check
from holdfast.store.port import Store
from holdfast.testing import Environment
from holdfast.testing.plan import LoggedStore
from holdfast.types import FlowStepState
from holdfast.worker import step_tasks
from tests.runtime.desk import eventually, working

AnyType = Any


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    async with Client(store=store) as client:
        yield client


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_tasks, "_UNFIT_SECONDS", 0.3)


@dataclass
class Old:
    name: str


@dataclass
class New:
    name: str
    street: str


@dataclass
class Raising:
    name: str

    def __post_init__(self) -> None:
        raise KeyError("street")


def typed(**types: object) -> Callable[[AnyType], AnyType]:
    """Declare the types of a function."""

    def declare(fn: AnyType) -> AnyType:
        fn.__annotations__.update({name.removesuffix("_"): kind for name, kind in types.items()})
        return fn

    return declare


def of_output(made: object, wanted: object) -> App:
    app = App("web")
    flow = app.flow("of_output")

    @flow.step
    @typed(return_=made)
    async def first(run: object) -> object:
        return run

    @flow.step(start_delay="1s")
    @typed(first=wanted)
    async def second(first: object) -> str:
        return "done"

    return app


def of_type(kind: AnyType) -> App:
    return of_output(kind, kind)


def of_map(kind: AnyType) -> App:
    app = App("web")
    flow = app.flow("of_map", input=list[Any])

    @flow.map(flow.run)
    @typed(return_=kind)
    async def each(item: object) -> object:
        return item

    @flow.step(start_delay="1s")
    @typed(each=list[kind])
    async def second(each: object) -> str:
        return "done"

    return app


def of_elements(kind: AnyType, made: object = None) -> App:
    app = App("web")
    flow = app.flow("of_elements")

    @flow.step
    @typed(return_=made or list[kind])
    async def first(run: object) -> object:
        return [run]

    @flow.map(first, start_delay="1s")
    @typed(item=kind)
    async def second(item: object) -> str:
        return "done"

    return app


def of_input(kind: AnyType, declared: object = None) -> App:
    app = App("web")
    flow = app.flow("of_input", input=declared or kind)

    @flow.step
    @typed(run=declared or kind)
    async def first(run: object) -> str:
        return "begun"

    @flow.step(start_delay="1s")
    @typed(run=kind)
    async def second(first: str, run: object) -> str:
        return "done"

    return app


def of_untaken(kind: AnyType, declared: object = None) -> App:
    """Return a flow whose second step is the first that takes the input."""
    app = App("web")
    flow = app.flow("of_untaken", input=declared or kind)

    @flow.step
    async def first() -> str:
        return "begun"

    @flow.step
    async def numbers(first: str) -> list[int]:
        return [1, 2]

    @flow.map(numbers)
    async def others(item: int) -> int:
        return item

    @flow.step(start_delay="1s")
    @typed(run=kind)
    async def second(others: list[int], run: object) -> str:
        return "done"

    return app


def of_inputs(kind: AnyType) -> App:
    app = App("web")
    flow = app.flow("of_inputs", input=list[kind])

    @flow.map(flow.run, start_delay="1s")
    @typed(item=kind)
    async def second(item: object) -> str:
        return "done"

    return app


def of_attempts(kind: AnyType) -> App:
    app = App("web")
    flow = app.flow("of_attempts", base_delay="1s")

    @flow.step
    @typed(run=kind)
    async def second(run: object) -> str:
        if current_flow_step().attempt == 1:
            raise OSError("busy")
        return "done"

    return app


ITEM = {"name": "ann"}
VARIANTS: dict[str, tuple[Callable[[AnyType], App], AnyType]] = {
    "an output": (of_type, ITEM),
    "an output of any type": (partial(of_output, dict[str, str]), ITEM),
    "the list of a map": (of_map, [ITEM]),
    "an element": (of_elements, ITEM),
    "an element of any type": (partial(of_elements, made=list[Any]), ITEM),
    "an element of a plain list": (partial(of_elements, made=list), ITEM),
    "the input": (of_input, ITEM),
    "an input that no step has taken": (of_untaken, ITEM),
    "an input of any type": (partial(of_input, declared=object), ITEM),
    "an element of the input": (of_inputs, [ITEM, ITEM]),
    "a second attempt": (of_attempts, ITEM),
}


@pytest.mark.parametrize("new", [New, Raising, int])
@pytest.mark.parametrize("variant", VARIANTS)
async def test_what_fitted_before_is_held_until_a_roll_back(
    store: Store, client: Client, variant: str, new: type
) -> None:
    make, given = VARIANTS[variant]
    if (variant, new) == ("an output of any type", int):
        pytest.skip("no definition: the types do not fit each other")
    async with working(make(Old), store):
        handle = await client.start(name_of(make(Old)), given)
        await eventually(lambda: waits_to_begin(store, handle.run_id))
    assert await checked(make(Old), store, handle.run_id) == []
    assert await checked(make(new), store, handle.run_id) == ["held"]
    async with working(make(new), store):
        await eventually(lambda: is_held(client, handle.run_id))
        assert (await client.runs.get(handle.run_id)).state in ("waiting", "queued", "running")
    async with working(make(Old), store):
        output: Any = await handle.result("60s")
    assert output["second"] in ("done", ["done"], ["done", "done"])
    before = 2 if variant == "a second attempt" else 1
    assert [each.attempts for each in await states(store, handle.run_id, "second")] in (
        [before],
        [None],
    )


async def checked(app: App, store: Store, run_id: UUID) -> list[str]:
    """Return what a check says that the code would do to a run."""
    check = Check(app)
    await check.add_open_runs(store)
    report = check.report()
    assert report.unchecked == []
    found = [each for each in report.findings if run_id in each.run_ids]
    assert all((each.file or "").endswith("test_flow_misfits.py") for each in found)
    return [each.kind for each in found]


def name_of(app: App) -> str:
    [flow] = app.flows.values()
    return flow.full_name


async def waits_to_begin(store: Store, run_id: UUID) -> bool:
    """Return True if the last step waits for the end of a pause."""
    phases = [each.phase for each in await store.open_step_tasks(run_id) if each.step == "second"]
    return phases in (["delayed"], ["retrying"])


async def is_held(client: Client, run_id: UUID) -> bool:
    told = str(await client.why(run_id))
    return "because no attempt could begin: what it is given does not fit this code" in told


async def states(store: Store, run_id: UUID, step: str) -> list[FlowStepState]:
    found = await store.flow_steps([run_id])
    return [each for each in found[run_id] if each.step == step]


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (partial(of_output, object), ITEM),
        (partial(of_input, declared=object), ITEM),
        (of_untaken, ITEM),
        (partial(of_untaken, declared=object), ITEM),
        (of_attempts, ITEM),
        (partial(of_elements, made=list[Any]), ITEM),
        (of_inputs, [{"name": "ann", "street": "x"}, ITEM]),
    ],
)
async def test_what_never_fitted_fails(
    store: Store, client: Client, make: Callable[[AnyType], App], given: object
) -> None:
    """A worker knows what it has made, and what came after it has begun."""
    async with working(make(New), store):
        handle = await client.start(name_of(make(New)), given)
        with pytest.raises(RunFailed, match="missing required field `street`"):
            await handle.result("60s")


async def test_a_bad_input_fails_a_run_that_has_not_begun(store: Store, client: Client) -> None:
    async with working(of_input(New), store):
        handle = await client.start(name_of(of_input(New)), ITEM)
        with pytest.raises(RunFailed, match="missing required field `street`"):
            await handle.result("60s")


async def test_bad_elements_of_any_type_are_failures_that_a_map_tolerates(
    store: Store, client: Client
) -> None:
    """Also on a worker that has not made them: its types are how a map looks at its elements."""

    def make() -> App:
        app = App("web")
        flow = app.flow("make")

        @flow.step
        async def first(run: object) -> list[Any]:
            return [ITEM, {"name": "bob", "street": "x"}]

        @flow.map(first, tolerate=1, start_delay="1s")
        async def second(item: New) -> str:
            return item.name

        return app

    async with working(make(), store):
        handle = await client.start(name_of(make()), None)
        await eventually(lambda: waits_to_begin(store, handle.run_id))
    async with working(make(), store):
        assert await handle.result("60s") == {"second": [None, "bob"]}


async def test_an_environment_names_a_step_that_is_held() -> None:
    store = LoggedStore()
    with patch("holdfast.testing.environment.LoggedStore", lambda _: store):
        async with Environment(of_type(Old)) as env:
            handle = await env.client.start(name_of(of_type(Old)), ITEM)
            await env.wait_until_idle()
        async with Environment(of_type(New)) as env:
            with pytest.raises(AssertionError, match=r"step second of run .* cannot be begun"):
                await env.result(env.client.handle(handle.run_id))
