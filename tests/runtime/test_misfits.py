"""Recorded values that do not fit the code: a deploy is stuck, a sender's fault fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from holdfast import Context
from holdfast.definitions.activities import Activity
from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Registry, Workflow
from holdfast.errors import InvalidInput
from holdfast.events import (
    ACTIVITY_COMPLETED,
    ACTIVITY_SCHEDULED,
    CHILD_COMPLETED,
    CHILD_STARTED,
    FAILED,
    FORKED,
    STEP_COMPLETED,
    UPDATE_ACCEPTED,
    VALUE_RECORDED,
)
from holdfast.types import Event
from tests.runtime.bench import RUN_ID, SECOND, Bench, Code


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


class Model(pydantic.BaseModel):
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def check(cls, name: str) -> str:
        raise RuntimeError("street")


def step_of(result: type) -> Step[[], Any]:
    async def look() -> Any:
        raise AssertionError("the test gives the results")

    look.__annotations__["return"] = result
    return Step(look)


async def _after(item: str) -> str:
    raise AssertionError("the test gives the results")


after = Step(_after, name="after")


def by_step(type: type) -> Code:
    look = step_of(type)

    async def code(ctx: Context) -> str:
        found = await look()
        return await after(found.name)

    return code


def by_activity(type: type) -> Code:
    async def code(ctx: Context) -> str:
        found = await ctx.activity("look", type=type)
        return await after(found.name)

    return code


def by_child(type: type) -> Code:
    async def code(ctx: Context) -> str:
        found = await ctx.child("look", type=type)
        return await after(found.name)

    return code


def by_signal(type: type) -> Code:
    async def code(ctx: Context) -> str:
        found = await ctx.wait_for_signal("look", type=type)
        return await after(found.name)

    return code


def fit(bench: Bench, kind: str, value: object = None) -> None:
    """Let the value come that the code waits for."""
    value = {"name": "ann"} if value is None else value
    if kind == "step":
        bench.complete("look", value)
        bench.settle()
        return
    bench.settle()
    if kind == "signal":
        bench.resume(bench.signal("look", value))
    elif kind == "activity":
        text = json.dumps({"activity_name": "look", "result": value, "attempt": 1})
        bench.resume(Event(ACTIVITY_COMPLETED, "look", text, bench.now))
    else:
        started = json.loads(bench.of_type(CHILD_STARTED)[0].details or "")
        text = json.dumps({"child_run_id": started["child_run_id"], "output": value})
        bench.resume(Event(CHILD_COMPLETED, "look", text, bench.now))


KINDS: dict[str, Callable[[type], Code]] = {
    "step": by_step,
    "activity": by_activity,
    "child": by_child,
    "signal": by_signal,
}


@pytest.mark.parametrize("new", [New, Raising, Model])
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_fitted_before_makes_the_run_stuck_and_a_roll_back_heals(
    kind: str, new: type
) -> None:
    bench = Bench(KINDS[kind](Old))
    fit(bench, kind)
    bench.complete("after", "done")
    part = bench.commit_due
    assert part is not None
    bench.log.append(part.events[0])  # the run continues for long
    bench.crash(KINDS[kind](new))
    assert "does not fit" in str(bench.stuck)
    assert "give its new fields a default" in str(bench.stuck)
    assert "ctx.patched" not in str(bench.stuck)
    assert "street" in str(bench.stuck)
    assert bench.commit_due is None
    bench.claim(KINDS[kind](Old))
    bench.settle()
    assert bench.output == "done"


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_fitted_before_makes_the_run_stuck_after_a_new_sleep_too(kind: str) -> None:
    """Fault: the run failed, since the new sleep had moved the code beyond the log."""

    async def delayed(ctx: Context) -> object:
        await ctx.sleep(5)
        return await KINDS[kind](New)(ctx)

    bench = Bench(KINDS[kind](Old))
    fit(bench, kind)
    bench.complete("after", "done")
    part = bench.commit_due
    assert part is not None
    bench.log.append(part.events[0])
    bench.crash(delayed)
    bench.settle()
    bench.now += 6 * SECOND
    bench.resume()
    bench.settle()
    assert "does not fit" in str(bench.stuck)
    bench.crash(KINDS[kind](Old))
    bench.settle()
    assert bench.output == "done"


@pytest.mark.parametrize("kind", ["activity", "child", "signal"])
def test_the_code_can_handle_a_value_that_never_fitted(kind: str) -> None:
    """The misfit is written down: a replay raises it again, and is not stuck."""

    async def code(ctx: Context) -> str:
        try:
            return await KINDS[kind](Old)(ctx)
        except InvalidInput:
            return await after("another way")

    bench = Bench(code)
    fit(bench, kind, {"wrong": 1})
    assert bench.starts[-1] == "after" or bench.settle()
    bench.settle()
    assert [event.key for event in bench.of_type(VALUE_RECORDED)] == [
        "misfit:signal.look" if kind == "signal" else "misfit:look"
    ]
    bench.crash()
    assert bench.stuck is None
    assert bench.starts == ["after"]
    assert bench.commit_due is None


def test_a_value_that_never_fitted_is_raised_after_a_removed_sleep_too() -> None:
    """Fault: the run was stuck for ever."""

    async def sleeping(ctx: Context) -> str:
        await ctx.sleep(5)
        return await by_signal(Old)(ctx)

    bench = Bench(sleeping)
    bench.settle()
    bench.now += 5 * SECOND
    bench.resume()
    bench.settle()
    bench.crash(by_signal(Old))
    fit(bench, "signal", {"wrong": 1})
    bench.settle()
    assert bench.types()[-1] == FAILED


def sleeping_beside(kind: str, new: type) -> tuple[Code, Code]:
    """Return code that sleeps beside its call, and that without the sleep."""

    async def old(ctx: Context) -> object:
        nap = asyncio.create_task(ctx.sleep(60, id="nap"))
        found = await KINDS[kind](Old)(ctx)
        await nap
        return found

    async def code(ctx: Context) -> object:
        return await KINDS[kind](new)(ctx)

    return old, code


@pytest.mark.parametrize("kind", ["activity", "child", "signal"])
def test_a_value_that_never_fitted_is_raised_while_a_removed_sleep_still_runs(kind: str) -> None:
    """Fault: the run was stuck for ever, also after the moment of the sleep."""
    old, code = sleeping_beside(kind, New)
    bench = Bench(old)
    bench.settle()
    bench.crash(code)
    fit(bench, kind, {"name": "ann"})
    bench.settle()
    assert bench.types()[-1] == FAILED
    assert bench.error["kind"] == "holdfast.errors.InvalidInput"


@pytest.mark.parametrize("later", ["a sleep", "a step"])
@pytest.mark.parametrize("kind", ["activity", "child", "signal"])
def test_a_value_that_came_before_the_deploy_may_have_fitted(kind: str, later: str) -> None:
    """Older code has taken it and sleeps, or is beyond that; new code comes later to it."""

    async def rest(ctx: Context) -> None:
        await (ctx.sleep(60) if later == "a sleep" else after("ann"))
        await ctx.wait_for_signal("never")

    def look(ctx: Context, type: type) -> Any:
        if kind == "signal":
            return ctx.wait_for_signal("look", type=type)
        return (ctx.activity if kind == "activity" else ctx.child)("look", type=type)

    async def old(ctx: Context) -> None:
        await look(ctx, Old)
        await rest(ctx)

    async def code(ctx: Context) -> None:
        begun = look(ctx, New)
        await ctx.sleep(5, id="new")
        await begun
        await rest(ctx)

    bench = Bench(old)
    fit(bench, kind)
    if later == "a step":
        bench.complete("after", "done")
    bench.settle()
    bench.crash(code)
    bench.settle()
    if bench.stuck is None:
        bench.now += 6 * SECOND
        bench.resume()
        bench.settle()
    assert "does not fit" in str(bench.stuck)


def test_a_value_that_never_fitted_fails_a_run_that_does_not_handle_it() -> None:
    bench = Bench(by_signal(Old))
    fit(bench, "signal", {"wrong": 1})
    bench.settle()
    assert bench.types()[-1] == FAILED


def test_each_misfit_of_one_name_is_recorded() -> None:
    async def code(ctx: Context) -> str:
        while True:
            try:
                return (await ctx.wait_for_signal("look", type=Old)).name
            except InvalidInput:
                continue

    bench = Bench(code)
    bench.settle()
    for value in ({"wrong": 1}, {"wrong": 2}):
        bench.resume(bench.signal("look", value))
        bench.settle()
        bench.crash()
        assert bench.stuck is None
        bench.settle()
    keys = [event.key for event in bench.of_type(VALUE_RECORDED)]
    assert keys == ["misfit:signal.look", "misfit:signal.look#2"]
    bench.resume(bench.signal("look", {"name": "ann"}))
    bench.settle()
    assert bench.output == "ann"


@pytest.mark.parametrize("given_by", ["a client", "a client, and begun", "the run before"])
@pytest.mark.parametrize("new", [New, Raising, Model, "Unknown"])
def test_an_input_that_fitted_before_makes_the_run_stuck(new: Any, given_by: str) -> None:
    """When the run began, or when the run before continued as this one: no caller gave it."""

    def version(type: Any) -> Code:
        async def code(ctx: Context, given: Any = None) -> str:
            await ctx.wait_for_signal("end")
            return str(given.name)

        code.__annotations__["given"] = type
        return code

    bench = Bench(version(Old), given={"name": "ann"})
    if given_by == "a client, and begun":
        bench.settle()
    elif given_by == "the run before":
        bench.log[0] = msgspec.structs.replace(bench.log[0], key=str(UUID(int=1)))
    bench.crash(version(new))
    if given_by == "a client":
        bench.settle()
        assert bench.error["kind"] == "holdfast.errors.InvalidInput"
        return
    assert "the input does not fit the code" in str(bench.stuck)
    assert "Unknown" in str(bench.stuck) if new == "Unknown" else "street" in str(bench.stuck)
    bench.crash(version(Old))
    bench.settle()
    bench.resume(bench.signal("end"))
    bench.settle()
    assert bench.output == "ann"


@pytest.mark.parametrize("kind", [Old, New, Raising, Model, "Unknown"])
def test_a_call_says_if_its_arguments_never_fitted(kind: Any) -> None:
    async def look(at: Any) -> None: ...

    look.__annotations__["at"] = kind
    registry = Registry("shop")
    registry.add_activity(Activity(look))

    async def code(ctx: Context) -> None:
        await ctx.activity("look", {"name": "ann"})

    bench = Bench(code, registry=registry)
    bench.settle()
    assert bench.details_of(ACTIVITY_SCHEDULED)[0].get("misfit") is (None if kind is Old else True)


def test_an_accepted_update_that_no_longer_fits_makes_the_run_stuck() -> None:
    def code(type: type) -> Code:
        async def flow(ctx: Context) -> str:
            async def move(to: Any) -> str:
                return await after(to.name)

            move.__annotations__["to"] = type
            ctx.handle_update("move", move)
            return str(await ctx.wait_for_signal("end"))

        return flow

    bench = Bench(code(Old))
    bench.settle()
    bench.resume(bench.update("move", {"name": "ann"}))
    assert UPDATE_ACCEPTED in [event.type for event in bench.commit().events]
    bench.crash(code(New))
    assert "update move was accepted" in str(bench.stuck)
    bench.claim(code(Old))
    assert bench.stuck is None


def test_a_recorded_activity_that_no_longer_fits_makes_the_run_stuck() -> None:
    def registry(result: type) -> Registry:
        async def look() -> Any: ...

        look.__annotations__["return"] = result
        found = Registry("shop")
        found.add_activity(Activity(look))
        return found

    async def code(ctx: Context) -> str:
        found = await ctx.activity("look")
        return await after(str(found))

    bench = Bench(code, registry=registry(Old))
    fit(bench, "activity")
    bench.complete("after", "done")
    part = bench.commit_due
    assert part is not None
    bench.log.append(part.events[0])
    bench.registry = registry(New)
    bench.crash()
    assert "street" in str(bench.stuck)


def declared(type: Any) -> Registry:
    """Return a registry with an activity, a step and a workflow that return a type."""

    async def look() -> Any: ...

    async def find(ctx: Context) -> Any: ...

    look.__annotations__["return"] = find.__annotations__["return"] = type
    registry = Registry("shop")
    registry.add_activity(Activity(look))
    registry.add_workflow(Workflow(find, name="find", registry=registry))
    return registry


def end_of(bench: Bench, kind: str, *, outside: bool = False) -> Event:
    """Return the end of a call, as the code of old has it."""
    if kind == "child":
        return bench.child_completed("find", {"name": "ann"})
    started = None if outside else bench.now
    done = {"activity_name": "look", "result": {"name": "ann"}, "started_at": started}
    return Event(ACTIVITY_COMPLETED, "look", json.dumps(done), bench.now)


def call_of(ctx: Context, kind: str) -> Any:
    return ctx.activity("look") if kind == "activity" else ctx.child("find")


async def awaited(ctx: Context, kind: str) -> Any:
    return await call_of(ctx, kind)


async def awaited_later(ctx: Context, kind: str) -> Any:
    begun = call_of(ctx, kind)
    await ctx.wait_for_signal("go")
    return await begun


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("way", [awaited, awaited_later])
@pytest.mark.parametrize("kind", ["activity", "child"])
def test_a_result_that_its_worker_has_checked_makes_the_run_stuck_and_a_roll_back_heals(
    kind: str, way: Callable[[Context, str], Any], fed: bool
) -> None:
    """Fault: the run failed for good if no code had awaited the result before the deploy."""

    async def code(ctx: Context) -> str:
        return await after((await way(ctx, kind)).name)

    bench = Bench(code, registry=declared(Old))
    bench.settle()
    end = end_of(bench, kind)
    if fed and way is awaited_later:
        bench.resume(end)
        bench.settle()
    else:
        bench.log.append(end)
    if way is awaited_later:
        bench.log.append(bench.signal("go"))
    bench.registry = declared(New)
    bench.crash()
    assert "does not fit" in str(bench.stuck)
    assert "roll the code back" in str(bench.stuck)
    assert (bench.starts, bench.commit_due) == ([], None)
    bench.registry = declared(Old)
    bench.crash()
    assert bench.starts == ["after"]
    bench.complete("after", "done")
    bench.settle()
    assert bench.output == "done"


def test_what_completes_an_activity_from_outside_may_give_a_result_that_does_not_fit() -> None:
    async def code(ctx: Context) -> str:
        try:
            return await after((await awaited_later(ctx, "activity")).name)
        except InvalidInput:
            return "handled"

    bench = Bench(code, registry=declared(New))
    bench.settle()
    bench.resume(end_of(bench, "activity", outside=True))
    bench.settle()
    bench.resume(bench.signal("go"))
    bench.settle()
    assert bench.output == "handled"


def test_a_result_that_older_code_has_left_elsewhere_makes_the_run_stuck() -> None:
    """Its transaction had committed, and its record comes from a worker of the new code."""
    bench = Bench(by_step(New))
    bench.complete("look", {"name": "ann"})
    bench.settle()
    for _ in range(2):
        assert "does not fit" in str(bench.stuck)
        assert [event.type for event in bench.log if event.key] == [STEP_COMPLETED]
        bench.crash()
    bench.crash(by_step(Old))
    assert bench.starts == ["after"]


@pytest.mark.parametrize("after", [None, []])
def test_a_fork_may_be_given_a_result_that_does_not_fit(after: list[str] | None) -> None:
    """A retry has the results of its origin."""

    async def code(ctx: Context) -> str:
        try:
            return str(await step_of(New)())
        except InvalidInput:
            return "handled"

    fork = {"run_id": str(RUN_ID), "seed": str(RUN_ID), "again": [], "after": after}
    bench = Bench(code)
    bench.complete("look", {"name": "ann"})
    bench.settle()
    bench.log.append(Event(FORKED, None, json.dumps(fork), bench.now))
    bench.crash()
    bench.settle()
    assert (bench.stuck is None) == (after is None)


def tried(wanted: Any) -> Code:
    """Code whose step takes a value of the wanted type."""

    async def pay(x: Any) -> None:
        raise AssertionError("the test gives the results")

    pay.__annotations__["x"] = wanted
    step: Step[[Any], None] = Step(pay)

    async def code(ctx: Context) -> None:
        await step("lamp")
        await ctx.wait_for_signal("packed")

    return code


def test_a_step_that_is_tried_again_does_not_fail_of_a_changed_type() -> None:
    """Its arguments fitted the code of the first attempt: a roll-back heals it."""
    bench = Bench(tried(str))
    bench.fail("pay", OSError("busy"), retry_in=30)
    bench.settle()
    for due in (0, 60):
        bench.now += due * SECOND
        bench.claim(tried(int))
        assert "'pay' was tried before, and its arguments do not fit its code now" in str(
            bench.stuck
        )
        assert "Expected `int`, got `str`" in str(bench.stuck)
        assert (bench.attempts, bench.commit_due) == ([], None)
    bench.claim(tried(int | str))
    assert bench.attempts == [("pay", 2)]
    bench.complete("pay", None)
    bench.settle()
    bench.claim(tried(int))  # it is not tried again: its result is there
    assert bench.suspended


def test_a_step_beside_one_that_is_tried_again_is_not_lost() -> None:
    def both(wanted: Any) -> Code:
        code = tried(wanted)

        async def main(ctx: Context) -> None:
            await asyncio.gather(after("box"), code(ctx))

        return main

    bench = Bench(both(str))
    pay = next(key for key in bench.starts if key.endswith("pay"))
    bench.fail(pay, OSError("busy"), retry_in=30)
    bench.settle()
    bench.crash(both(int))
    assert bench.stuck is not None
    assert (bench.starts, bench.cancelled) == ([], [])
    bench.claim(both(str))
    assert [key.rpartition("/")[2] for key in bench.starts] == ["after"]
    bench.pass_time(60)
    assert (pay, 2) in bench.attempts


def test_a_step_whose_first_arguments_do_not_fit_is_started_to_fail() -> None:
    assert Bench(tried(int)).starts == ["pay"]
