"""Attributes that code sets: recorded once, found again on replay, the same after a crash."""

from __future__ import annotations

import json

import pytest

from holdfast import Context
from holdfast.errors import ConfigurationError, InvalidInput
from tests.runtime.bench import Bench
from tests.runtime.test_turn import after, work


def recorded(bench: Bench) -> list[tuple[str | None, dict[str, object]]]:
    """Return what the log has of attributes, with the keys of the calls."""
    return [
        (event.key, json.loads(event.details or "")["attributes"])
        for event in bench.log
        if event.type == "AttributesSet"
    ]


def test_a_commit_carries_attributes_out() -> None:
    """Also if the run has given no other command: the store looks for it only if it is told to."""

    async def flow(ctx: Context) -> None:
        ctx.set_attributes(customer="acme", trial=None)
        await work(1)

    bench = Bench(flow)
    part = bench.commit()
    assert part.has_commands
    assert [event.type for event in part.events] == ["AttributesSet"]
    assert recorded(bench) == [("attributes", {"customer": "acme", "trial": None})]


def test_the_last_attributes_and_the_end_are_one_commit() -> None:
    async def flow(ctx: Context) -> int:
        ctx.set_attributes(stage="done")
        return 1

    bench = Bench(flow)
    part = bench.commit()
    assert [event.type for event in part.events] == ["AttributesSet", "WorkflowCompleted"]
    assert part.has_commands


def test_a_replay_finds_attributes_and_sets_none_again() -> None:
    async def flow(ctx: Context) -> None:
        for number in range(2):
            ctx.set_attributes(stage=number)
            await work(number)
        await after(1)

    bench = Bench(flow)
    bench.commit()
    bench.complete("work")
    bench.commit()
    bench.crash()
    assert recorded(bench) == [("attributes", {"stage": 0}), ("attributes#2", {"stage": 1})]
    assert bench.commit_due is None
    bench.complete("work#2")
    part = bench.commit()
    assert "AttributesSet" not in [event.type for event in part.events]


def test_what_was_not_committed_is_set_by_the_next_worker() -> None:
    async def flow(ctx: Context) -> None:
        await work(1)
        ctx.set_attributes(stage="worked")
        await after(1)

    bench = Bench(flow)
    bench.complete("work")  # its commit is lost with the worker
    bench.crash()
    bench.complete("work")
    bench.commit()
    assert recorded(bench) == [("attributes", {"stage": "worked"})]


def test_bad_attributes_raise_where_they_are_set() -> None:
    """The code may handle it, and the log has nothing of it."""

    async def flow(ctx: Context) -> list[str]:
        said = list[str]()
        for values in ({"a b": 1}, {"a": [1]}, {"a": "x" * 501}):
            try:
                ctx.set_attributes(**values)  # type: ignore[arg-type]
            except (ConfigurationError, InvalidInput) as error:
                said.append(str(error))
        return said

    bench = Bench(flow)
    part = bench.commit()
    assert [event.type for event in part.events] == ["WorkflowCompleted"]
    assert len(json.loads(part.then.output)) == 3  # type: ignore[union-attr,arg-type]


@pytest.mark.parametrize("crash", [False, True])
def test_all_that_code_sets_is_bounded_the_same_on_replay(crash: bool) -> None:
    async def flow(ctx: Context) -> int:
        for number in range(20):
            try:
                ctx.set_attributes(**{f"a{number}": "x" * 450})
            except InvalidInput:
                await work(number)
                return number
        raise AssertionError

    bench = Bench(flow)
    if crash:
        bench.commit()
        bench.crash()
        assert bench.commit_due is None
        bench.complete("work")
        part = bench.commit()
    else:
        bench.commit()
        bench.complete("work")
        part = bench.commit()
    assert part.then is not None
    assert part.then.output == "8"  # type: ignore[union-attr]
