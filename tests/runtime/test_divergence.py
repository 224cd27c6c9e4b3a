"""Code that has changed under a run."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Context
from holdfast.definitions.activities import Activity
from holdfast.definitions.steps import Step
from holdfast.events import ACTIVITY_SCHEDULED, STEP_COMPLETED, TIMER_SCHEDULED
from holdfast.runtime.log import virtual_log
from holdfast.types import Event
from tests.runtime.bench import SECOND, START, Bench, Code


def recorded(name: str) -> Step[[object], int]:
    def fn(item: object) -> int:
        raise AssertionError("the test gives the results")

    return Step(fn, name=name)


async def _elsewhere(item: object) -> int:
    raise AssertionError("the test gives the results")


render = Activity(_elsewhere, name="render")
fetch, audit, ship = recorded("fetch"), recorded("audit"), recorded("ship")


async def first_version(ctx: Context) -> list[int]:
    return [await fetch("a"), await ship("b"), await ship("c")]


def half_way(*, strict: bool = False) -> Bench:
    """A run of the first version that waits for its third step."""
    bench = Bench(first_version, strict=strict)
    bench.complete("fetch", 1)
    bench.commit()
    bench.complete("ship", 2)
    bench.commit()
    return bench


def test_an_input_that_no_longer_fits_makes_the_run_stuck_and_a_roll_back_heals() -> None:
    """Only a run that has done nothing yet fails of its input."""

    async def of_another_type(ctx: Context, given: list[int]) -> list[int]:
        raise AssertionError("never called")

    async def without_one(ctx: Context) -> list[int]:
        raise AssertionError("never called")

    async def taking_one(ctx: Context, given: str) -> list[int]:
        return [await fetch(given), await ship("b")]

    bench = Bench(taking_one, given="a")
    bench.complete("fetch", 1)
    bench.commit()
    for changed in (of_another_type, without_one):
        bench.crash(changed)
        assert "input" in str(bench.stuck)
        assert bench.commit_due is None
    bench.claim(taking_one)
    bench.complete("ship", 2)
    bench.settle()
    assert bench.output == [1, 2]


def test_other_arguments_under_a_key_make_the_run_stuck_and_a_roll_back_heals() -> None:
    async def second(ctx: Context) -> list[int]:
        return [await fetch("other"), await ship("b"), await ship("c")]

    bench = half_way()
    bench.crash(second)
    assert "'fetch'" in str(bench.stuck)
    assert "other arguments" in str(bench.stuck)
    assert "test_divergence.py:" in str(bench.stuck)
    assert "in second)" in str(bench.stuck)
    assert bench.commit_due is None
    bench.claim(first_version)
    bench.complete("ship#2", 3)
    bench.settle()
    assert bench.output == [1, 2, 3]


async def by_gather(ctx: Context) -> object:
    return await asyncio.gather(fetch("a"), ship("b"))


async def in_a_helper(ctx: Context) -> object:
    async def helper(item: str) -> int:
        return await fetch(item)

    return await asyncio.gather(helper("a"), helper("b"))


async def in_a_timer(ctx: Context) -> object:
    return await ctx.sleep(7)


async def by_activity(ctx: Context) -> object:
    return await render("a")


@pytest.mark.parametrize(
    ("code", "key", "kind", "place"),
    [
        (by_gather, "fetch", "step", "in by_gather"),
        (in_a_helper, "helper#2/fetch", "step", "in helper"),
        (in_a_timer, "sleep", "timer", "in in_a_timer"),
        (by_activity, "render", "activity", "in by_activity"),
    ],
)
def test_a_difference_names_the_line_that_makes_the_call(
    code: Code, key: str, kind: str, place: str
) -> None:
    other = {
        "step": (STEP_COMPLETED, '{"name":"fetch","args":1,"result":1}'),
        "timer": (TIMER_SCHEDULED, '{"timer_id":"sleep","fire_at":1,"delay":5}'),
        "activity": (ACTIVITY_SCHEDULED, '{"activity_name":"render","args":1,"input":["x"]}'),
    }[kind]
    bench = Bench(code)
    bench.log = [bench.log[0], Event(other[0], key, other[1], START)]
    bench.claim()
    assert "test_divergence.py:" in str(bench.stuck)
    assert place in str(bench.stuck)


def test_a_second_call_before_a_recorded_one_of_the_same_name_makes_the_run_stuck() -> None:
    async def second(ctx: Context) -> list[int]:
        return [await fetch("a"), await ship("new"), await ship("b"), await ship("c")]

    bench = half_way()
    bench.crash(second)
    assert "other arguments" in str(bench.stuck)


def test_another_step_under_an_explicit_id_makes_the_run_stuck() -> None:
    async def first(ctx: Context) -> object:
        await ctx.step("fetch", fetch, 1, id="one")
        return await ship(1)

    async def second(ctx: Context) -> object:
        await ctx.step("audit", audit, 1, id="one")
        return await ship(1)

    bench = Bench(first)
    bench.complete("one")
    bench.commit()
    bench.crash(second)
    assert "a call of audit" in str(bench.stuck)


def test_a_timer_in_place_of_a_step_makes_the_run_stuck() -> None:
    async def first(ctx: Context) -> object:
        await ctx.step("fetch", fetch, 1, id="one")
        return await ship(1)

    async def second(ctx: Context) -> object:
        await ctx.sleep(60, id="one")
        return await ship(1)

    bench = Bench(first)
    bench.complete("one")
    bench.commit()
    bench.crash(second)
    assert "a timer" in str(bench.stuck)


@pytest.mark.parametrize("fired", [True, False])
def test_a_step_in_place_of_a_timer_makes_the_run_stuck(fired: bool) -> None:
    async def first(ctx: Context) -> object:
        await ctx.sleep(60, id="one")
        return await ship(1)

    async def second(ctx: Context) -> object:
        await ctx.step("fetch", fetch, 1, id="one")
        return await ship(1)

    bench = Bench(first)
    bench.commit()
    if fired:
        bench.now += 60 * SECOND
        bench.resume()
        bench.commit()
    bench.crash(second)
    assert "a timer" in str(bench.stuck)


def test_another_delay_of_a_recorded_timer_makes_the_run_stuck() -> None:
    async def first(ctx: Context) -> None:
        await ctx.sleep(60)

    async def second(ctx: Context) -> None:
        await ctx.sleep(90)

    bench = Bench(first)
    bench.commit()
    bench.crash(second)
    assert "a timer of 90 s" in str(bench.stuck)
    assert "a timer of 60 s" in str(bench.stuck)


def test_a_failed_attempt_with_other_arguments_makes_the_run_stuck() -> None:
    async def second(ctx: Context) -> list[int]:
        return [await fetch("other")]

    bench = Bench(first_version)
    bench.fail("fetch", OSError("busy"), retry_in=30)
    bench.commit()
    bench.crash(second)
    assert "other arguments" in str(bench.stuck)


@pytest.mark.parametrize("what", ["more", "fewer", "no sleep"])
def test_strictness_refuses_any_difference(what: str) -> None:
    async def first(ctx: Context) -> None:
        await fetch(1)
        await asyncio.gather(ctx.sleep(60), ship(1))
        await ctx.sleep(1)

    async def more(ctx: Context) -> None:
        await audit(1)
        await first(ctx)

    async def fewer(ctx: Context) -> None:
        await asyncio.gather(ctx.sleep(60), ship(1))
        await ctx.sleep(1)

    async def no_sleep(ctx: Context) -> None:
        await fetch(1)
        await ship(1)
        await ctx.sleep(1)

    bench = Bench(first, strict=True)
    bench.complete("fetch")
    bench.commit()
    bench.complete("ship")
    bench.settle()
    bench.crash(first)
    assert bench.stuck is None
    bench.settle()
    bench.crash({"more": more, "fewer": fewer, "no sleep": no_sleep}[what])
    assert "does not make" in str(bench.stuck)


def test_the_first_commit_says_which_python_made_it() -> None:
    bench = half_way()
    stamps = [event for event in bench.log if '"python"' in (event.details or "")]
    assert stamps == [bench.log[1]]


@pytest.mark.parametrize("strict", [True, False])
def test_another_python_is_reported_and_refused_where_strict(
    strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = half_way(strict=strict)
    first = bench.log[1]
    other = (first.details or "").replace(virtual_log.PYTHON, "3.99")
    bench.log[1] = type(first)(first.type, first.key, other, first.at)
    bench.crash()
    found = str(bench.stuck) if strict else bench.problems[0]
    assert "begun on Python 3.99" in found
    assert (bench.stuck is None) is not strict


def test_results_of_steps_are_recorded_before_the_run_is_stuck() -> None:
    """Else each try of the stuck run would do their work again."""

    async def flow(ctx: Context) -> None:
        await asyncio.gather(fetch(1), ship(1))

    async def broken(ctx: Context) -> None:
        async def then() -> None:
            await fetch(1)
            asyncio.get_running_loop().stop()

        await asyncio.gather(then(), ship(1))

    bench = Bench(broken)
    bench.complete("then/fetch", 5)
    assert bench.stuck is None
    bench.complete("ship", 6)
    bench.settle()
    assert bench.stuck is not None
    assert bench.types() == ["WorkflowStarted", "StepCompleted", "StepCompleted"]
    assert bench.now == START
