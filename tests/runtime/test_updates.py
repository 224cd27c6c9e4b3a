"""Updates: signals that a run answers."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

import pytest

from holdfast import Context
from holdfast.definitions.activities import Activity
from holdfast.definitions.steps import Step
from holdfast.errors import ConfigurationError
from holdfast.events import (
    COMPLETED,
    CONTINUED,
    PAUSED,
    RESUMED,
    UPDATE_ACCEPTED,
    UPDATE_COMPLETED,
    UPDATE_REJECTED,
    UPDATE_REPLIES,
    VALUE_RECORDED,
    write_value,
)
from holdfast.runtime.code.updates import Updates
from holdfast.runtime.code.values import RAISED
from holdfast.types import Event, Notice, update_topic
from tests.runtime.bench import RUN_ID, Bench, Code


async def _elsewhere(item: int) -> int:
    raise AssertionError("the test gives the results")


work = Step(_elsewhere, name="work")


@dataclass
class Item:
    name: str
    count: int = 1


async def shop(ctx: Context) -> list[str]:
    items: list[Item] = []

    def check(item: Item) -> None:
        if item.count < 1:
            raise ValueError("count must be 1 or more")

    async def add(item: Item) -> int:
        items.append(item)
        return len(items)

    ctx.handle_update("add", add, validate=check)
    await ctx.wait_for_signal("close")
    return [item.name for item in items]


def test_an_update_is_accepted_carried_out_and_answered() -> None:
    bench = Bench(shop)
    bench.commit()
    assert set(bench.suspend.awaiting) == {"close", update_topic("add")}
    bench.resume(bench.update("add", {"name": "tea"}, "u1"))
    assert bench.notices == []
    part = bench.commit()
    assert [(e.type, e.key) for e in part.events] == [
        (UPDATE_ACCEPTED, "u1"),
        (UPDATE_COMPLETED, "u1"),
    ]
    assert bench.details_of(UPDATE_COMPLETED) == [{"update_name": "add", "result": 1}]
    assert bench.notices == [Notice("client/1", f"{RUN_ID} u1")]
    bench.crash()
    bench.settle()
    bench.resume(bench.update("add", {"name": "milk"}, "u2"), bench.signal("close"))
    bench.settle()
    assert bench.output == ["tea", "milk"]
    assert len(bench.of_type(UPDATE_COMPLETED)) == 2


@pytest.mark.parametrize(
    ("payload", "message"),
    [({"name": "tea", "count": 0}, "count must be"), ({"name": 1}, "payload of update add")],
)
def test_an_update_that_is_refused_leaves_no_other_trace(payload: object, message: str) -> None:
    bench = Bench(shop)
    bench.settle()
    bench.resume(bench.update("add", payload))
    part = bench.commit()
    assert [event.type for event in part.events] == [UPDATE_REJECTED]
    assert message in bench.details_of(UPDATE_REJECTED)[0]["error"]["message"]
    assert bench.notices == [Notice("client/1", f"{RUN_ID} u")]
    bench.resume(bench.signal("close"))
    bench.settle()
    assert bench.output == []


def test_updates_that_came_before_their_handler_are_served_in_order() -> None:
    """Trap 4."""

    async def flow(ctx: Context) -> list[int]:
        await ctx.wait_for_signal("open")
        seen: list[int] = []
        ctx.handle_update("add", seen.append)
        await ctx.wait_for_signal("close")
        return seen

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.update("add", 1, "a"), bench.update("add", 2, "b"), bench.signal("open"))
    bench.settle()
    assert [event.key for event in bench.of_type(UPDATE_COMPLETED)] == ["a", "b"]
    bench.crash()
    bench.settle()
    bench.resume(bench.signal("close"))
    bench.settle()
    assert bench.output == [1, 2]


def test_a_handler_may_do_durable_work_while_the_run_continues() -> None:
    """S6. Its calls have keys of their own, and its answer waits for them."""

    async def flow(ctx: Context) -> str:
        async def reserve(item: int) -> int:
            return await work(item)

        ctx.handle_update("reserve", reserve)
        await ctx.wait_for_signal("close")
        return "closed"

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.update("reserve", 3, "a"), bench.update("reserve", 4, "b"))
    keys = ["~/update-reserve/work", "~/update-reserve#2/work"]
    assert bench.starts == keys
    bench.complete(keys[1], 40)
    bench.settle()
    bench.crash()
    assert bench.starts == keys[:1]
    bench.complete(keys[0], 30)
    bench.settle()
    answers = [(e.key, e.details) for e in bench.of_type(UPDATE_COMPLETED)]
    assert answers == [
        ("b", '{"update_name":"reserve","result":40}'),
        ("a", '{"update_name":"reserve","result":30}'),
    ]
    assert [n.payload for n in bench.notices] == [f"{RUN_ID} b", f"{RUN_ID} a"]


def test_an_exit_in_a_handler_fails_its_update_and_not_the_run() -> None:
    """So does one in a library that it calls, as a parser of arguments."""

    async def flow(ctx: Context) -> str:
        async def leave() -> None:
            sys.exit("no such option")

        def refuse() -> None:
            sys.exit("no such item")

        ctx.handle_update("leave", leave)
        ctx.handle_update("refused", leave, validate=refuse)
        await ctx.wait_for_signal("close")
        return "closed"

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.update("leave", None, "a"), bench.update("refused", None, "b"))
    bench.settle()
    bench.crash()
    bench.settle()
    for kind, said in ((UPDATE_COMPLETED, "option"), (UPDATE_REJECTED, "item")):
        [answer] = bench.details_of(kind)
        assert answer["error"]["kind"] == "builtins.SystemExit"
        assert answer["error"]["message"] == f"no such {said}"
    bench.resume(bench.signal("close"))
    bench.settle()
    assert bench.output == "closed"


def test_a_validate_that_checks_nothing_rejects_the_update() -> None:
    """Faults: an async one was not awaited, and what a cancelled one refused was not answered."""
    cancelled: list[asyncio.Future[None]] = []

    async def flow(ctx: Context) -> str:
        cancelled[:] = [asyncio.Future()]
        cancelled[0].cancel()

        async def check(item: Item) -> None:
            raise ValueError("count must be 1 or more")

        def add(item: Item) -> None:
            raise AssertionError("it was accepted")

        ctx.handle_update("async", add, validate=check)
        ctx.handle_update("lambda", add, validate=lambda item: check(item))
        ctx.handle_update("cancelled", add, validate=lambda item: cancelled[0].result())
        await ctx.wait_for_signal("close")
        return "closed"

    bench = Bench(flow)
    bench.settle()
    names = ("async", "lambda", "cancelled")
    bench.resume(*(bench.update(name, {"name": "tea"}, name) for name in names))
    bench.settle()
    bench.crash()
    bench.settle()
    said = [answer["error"]["message"] for answer in bench.details_of(UPDATE_REJECTED)]
    for name, words in zip(names[:2], said, strict=False):
        assert words.startswith(f"validate of update {name}: it is async"), words
    assert len(said) == 3
    bench.resume(bench.signal("close"))
    bench.settle()
    assert bench.output == "closed"


def test_a_handler_that_fails_fails_its_update_and_not_the_run() -> None:
    async def flow(ctx: Context) -> str:
        async def fail() -> None:
            raise KeyError("tea")

        async def hang() -> None:
            await ctx.wait_for_signal("never")

        ctx.handle_update("fail", fail)
        ctx.handle_update("hang", hang, timeout=5)
        await ctx.wait_for_signal("close")
        return "closed"

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.update("fail", None, "a"), bench.update("hang", None, "b"))
    bench.settle()
    bench.now += 6_000_000
    bench.resume()
    bench.settle()
    kinds = [answer["error"]["kind"] for answer in bench.details_of(UPDATE_COMPLETED)]
    assert kinds == ["builtins.KeyError", "builtins.TimeoutError"]
    bench.resume(bench.signal("close"))
    bench.settle()
    assert bench.output == "closed"


def test_an_answer_that_was_not_committed_is_not_told() -> None:
    """Trap 30. The caller hears of what is durable."""
    bench = Bench(shop)
    bench.settle()
    bench.resume(bench.update("add", {"name": "tea"}))
    bench.refuse(bench.interruption())
    assert bench.notices == []
    bench.settle()
    assert len(bench.notices) == 1


async def desk(ctx: Context) -> None:
    async def reserve(item: int) -> int:
        return await work(item) if item else 0

    ctx.handle_update("reserve", reserve)
    await ctx.wait_for_signal("close")


def owed(bench: Bench) -> int:
    """How many callers the run's code keeps in mind."""
    updates = bench.turn.instance.ledger(Updates)
    return len(updates._replies) + len(updates._shipped)


def test_callers_who_were_told_are_forgotten() -> None:
    """A run that lives on updates keeps those in mind that it has to answer, and no others."""
    bench = Bench(desk)
    bench.settle()
    for number in range(20):
        bench.resume(bench.update("reserve", 0, f"u{number}"))
        bench.refuse(bench.interruption())
        bench.settle()
        assert owed(bench) == 1
    bench.resume(bench.update("reserve", 1, "slow"), bench.update("elsewhere", 0, "unread"))
    bench.settle()
    assert owed(bench) == 2
    assert [notice.payload for notice in bench.notices] == [f"{RUN_ID} u{n}" for n in range(20)]
    bench.crash()
    assert owed(bench) == 2


def test_an_answer_is_told_once_however_often_its_commit_is_refused() -> None:
    """Trap 30."""
    bench = Bench(desk)
    bench.settle()
    bench.resume(bench.update("reserve", 0, "a"))
    bench.refuse(bench.interruption())
    bench.refuse(bench.update("reserve", 0, "b"))
    bench.refuse(bench.interruption())
    assert bench.notices == []
    bench.settle()
    bench.resume(bench.signal("close"))
    bench.settle()
    assert [notice.payload for notice in bench.notices] == [f"{RUN_ID} a", f"{RUN_ID} b"]


def test_code_that_is_rebuilt_answers_again_if_the_commit_was_refused() -> None:
    """Trap 30. Those that stand in the log were told before."""
    bench = Bench(desk)
    bench.settle()
    bench.resume(bench.update("reserve", 0, "a"))
    bench.settle()
    bench.resume(bench.update("reserve", 1, "b"))
    bench.complete("~/update-reserve#2/work", 1)
    bench.commit()  # that it was accepted
    bench.refuse(bench.interruption())
    assert bench.needs_log
    bench.take(bench.turn.rebuild(bench.log))
    bench.settle()
    assert [notice.payload for notice in bench.notices] == [f"{RUN_ID} a", f"{RUN_ID} b"]


def test_a_result_that_cannot_be_stored_fails_the_update() -> None:
    """Trap 20."""

    async def flow(ctx: Context) -> None:
        def bad() -> float:
            return float("nan")

        ctx.handle_update("bad", bad)
        await ctx.wait_for_signal("close")

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.update("bad", None))
    bench.settle()
    [answer] = bench.details_of(UPDATE_COMPLETED)
    assert answer["error"]["kind"] == "holdfast.errors.PayloadError"


def test_a_handler_takes_the_payload_and_nothing_else() -> None:
    async def flow(ctx: Context) -> str:
        try:
            ctx.handle_update("add", lambda a, b: None)
        except ConfigurationError as error:
            return str(error)
        return ""

    bench = Bench(flow)
    bench.settle()
    assert "takes the payload and nothing else" in bench.output


def test_a_run_may_live_on_updates_alone() -> None:
    async def flow(ctx: Context) -> str:
        done = asyncio.Event()
        ctx.handle_update("finish", done.set)
        await done.wait()
        return "finished"

    bench = Bench(flow)
    bench.settle()
    assert bench.suspend.awaiting == (update_topic("finish"),)
    bench.resume(bench.update("finish", None))
    bench.settle()
    assert bench.output == "finished"
    assert bench.types()[-2:] == [UPDATE_COMPLETED, COMPLETED]
    assert len(bench.notices) == 1


def limited(most: int) -> Code:
    async def flow(ctx: Context) -> list[int]:
        taken: list[int] = []

        def check(count: int) -> None:
            if count > most:
                raise ValueError("too many")

        async def take(count: int) -> None:
            taken.append(count)

        ctx.handle_update("take", take, validate=check)
        await ctx.wait_for_signal("close")
        return taken

    return flow


@pytest.mark.parametrize(
    ("before", "after", "said", "taken"),
    [(10, 1, [UPDATE_ACCEPTED, UPDATE_COMPLETED], [5]), (1, 10, [UPDATE_REJECTED], [])],
)
def test_under_changed_code_the_answer_to_an_update_stays_as_it_is(
    before: int, after: int, said: list[str], taken: list[int]
) -> None:
    """Trap 5. T9. The caller was told so."""
    bench = Bench(limited(before))
    bench.settle()
    bench.resume(bench.update("take", 5))
    bench.settle()
    bench.crash(limited(after))
    bench.settle()
    bench.resume(bench.signal("close"))
    bench.settle()
    assert bench.output == taken
    assert [kind for kind in bench.types() if kind in UPDATE_REPLIES] == said


async def amending(ctx: Context) -> str:
    async def amend() -> int:
        await ctx.wait_for_signal("ok")
        return await work(1)

    ctx.handle_update("amend", amend)
    return await ctx.wait_for_signal("close", type=str)


async def without_its_handler(ctx: Context) -> str:
    return await ctx.wait_for_signal("close", type=str)


async def with_another_name(ctx: Context) -> str:
    ctx.handle_update("change", lambda: 1)
    return await ctx.wait_for_signal("close", type=str)


async def with_its_handler_later(ctx: Context) -> str:
    await ctx.sleep(5)
    return await amending(ctx)


async def that_ends_before(ctx: Context) -> str:
    return "nothing to do"


@pytest.mark.parametrize(
    "code", [without_its_handler, with_another_name, with_its_handler_later, that_ends_before]
)
@pytest.mark.parametrize("careful", [True, False])
def test_code_that_drops_an_accepted_update_is_stuck_and_a_roll_back_heals(
    code: Code, careful: bool
) -> None:
    """G15. Its effect never happened, and its caller was told of an end."""
    bench = Bench(amending)
    bench.settle()
    bench.resume(bench.update("amend", None, "a"))
    bench.settle()
    length = len(bench.log)
    bench.careful = careful
    bench.crash(code)
    bench.settle()
    what = "update amend was accepted, and the code has no handler for it"
    if not careful:
        assert bench.stuck is None
        assert any(what in problem for problem in bench.problems)
        return
    assert what in str(bench.stuck)
    assert "roll the code back" in str(bench.stuck)
    assert [event.type for event in bench.log[length:]] == ["WorkerLost"]
    bench.crash(amending)
    bench.settle()
    bench.resume(bench.signal("ok"))
    bench.complete("~/update-amend/work", 1)
    bench.settle()
    assert len(bench.of_type(UPDATE_COMPLETED)) == 1


def test_the_handler_of_updates_that_were_carried_out_may_go() -> None:
    bench = Bench(shop)
    bench.settle()
    bench.resume(bench.update("add", {"name": "tea"}, "a"), bench.update("add", {"name": 1}, "b"))
    bench.settle()
    bench.crash(without_its_handler)
    bench.settle()
    assert bench.suspended


async def leave(ctx: Context, how: str) -> None:
    """Accept an update, and end in one way or another before it is carried out."""

    async def reserve() -> int:
        return await work(1)

    ctx.handle_update("reserve", reserve)
    await ctx.wait_for_signal("leave")
    if how == "failed":
        raise KeyError("tea")
    if how == "continued":
        ctx.continue_as_new(how)


def leaving(how: str) -> Bench:
    """A run that has just ended so, and has not committed it."""
    bench = Bench(leave, given=how)
    bench.settle()
    bench.resume(bench.update("reserve", None, "a"), bench.update("other", None, "b"))
    bench.settle()
    bench.news(bench.cancel_request() if how == "cancelled" else bench.signal("leave"))
    return bench


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled", "continued"])
def test_an_accepted_update_is_answered_if_the_run_ends_first(how: str) -> None:
    """Trap 1. Who waits for any answer hears at once."""
    bench = leaving(how)
    bench.settle()
    assert bench.ended == how
    assert bench.types()[-2] == UPDATE_COMPLETED
    [answer] = bench.details_of(UPDATE_COMPLETED)
    assert (answer["update_name"], answer["error"]["kind"]) == (
        "reserve",
        "holdfast.errors.RunEnded",
    )
    assert "before it had carried out" in answer["error"]["message"]
    assert bench.notices == [Notice("client/1", f"{RUN_ID} {key}") for key in "ab"]
    replay = Bench(leave, given=how)
    replay.turn.abandon()
    replay.log = bench.log[:-1]
    if how == "failed":  # a commit that is split before an error's end says so first
        replay.log.insert(-1, Event(VALUE_RECORDED, RAISED, write_value("true"), bench.now))
    replay.claim()
    assert [event.type for event in replay.commit().events] == [bench.types()[-1]]


@pytest.mark.parametrize("first", ["pause", "result"])
def test_an_end_that_others_come_before_answers_once(first: str) -> None:
    """Trap 30."""
    bench = leaving("completed")
    if first == "result":
        bench.complete("~/update-reserve/work", 4)
    bench.refuse(bench.plain(PAUSED, '{"reason":null}'))
    assert bench.notices == []
    bench.settle()
    assert len(bench.of_type(UPDATE_COMPLETED)) == 1
    assert len(bench.notices) == 2


def test_a_caller_hears_of_the_end_also_if_a_pause_came_before_it() -> None:
    """Trap 30."""
    bench = leaving("continued")
    bench.refuse(bench.plain(PAUSED, '{"reason":null}'))
    bench.settle()
    assert bench.suspended
    assert [notice.payload for notice in bench.notices] == [f"{RUN_ID} a"]
    bench.resume(bench.plain(RESUMED))
    bench.settle()
    assert bench.ended == "continued"
    assert [notice.payload for notice in bench.notices] == [f"{RUN_ID} a", f"{RUN_ID} b"]


def test_a_run_that_waits_for_what_it_let_go_answers_at_once() -> None:
    """Its code has ended, and nobody carries out what it accepted."""
    render = Activity(_elsewhere, name="render")

    async def flow(ctx: Context) -> None:
        async def hang() -> None:
            await ctx.wait_for_signal("never")

        ctx.handle_update("hang", hang)
        render(1)
        await ctx.wait_for_signal("leave")

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.update("hang", None), bench.signal("leave"))
    bench.settle()
    assert bench.suspended
    assert len(bench.notices) == 1
    bench.resume(bench.activity_completed("render", 1))
    bench.settle()
    assert len(bench.of_type(UPDATE_COMPLETED)) == len(bench.notices) == 1


def test_code_that_cannot_continue_answers_nothing() -> None:
    """What it accepted, the code that follows may carry out."""

    async def flow(ctx: Context) -> None:
        async def hang() -> None:
            await ctx.wait_for_signal("never")

        ctx.handle_update("hang", hang)
        await ctx.wait_for_signal("leave")
        await asyncio.to_thread(print)

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.update("hang", None), bench.signal("leave"))
    bench.settle()
    assert bench.stuck
    assert not bench.of_type(UPDATE_COMPLETED)


async def finish(ctx: Context) -> None:
    async def reserve(item: int) -> int:
        return await work(item)

    ctx.handle_update("reserve", reserve)
    await ctx.wait_for_signal("leave")
    await ctx.finish_updates()
    ctx.continue_as_new()


def test_code_can_wait_for_the_handlers_that_run() -> None:
    """Also for those that begin while it waits, and by a replay; the rest goes to the next run."""
    bench = Bench(finish)
    bench.settle()
    bench.resume(bench.update("reserve", 3, "a"), bench.signal("leave"))
    bench.settle()
    assert bench.ended is None
    bench.crash()
    bench.news(bench.update("reserve", 4, "b"))
    bench.complete("~/update-reserve/work", 30)
    bench.settle()
    assert bench.ended is None
    bench.crash()
    bench.complete("~/update-reserve#2/work", 40)
    bench.settle()
    assert bench.ended == "continued"
    assert [(e.key, "error" in (e.details or "")) for e in bench.of_type(UPDATE_COMPLETED)] == [
        ("a", False),
        ("b", False),
    ]


def test_an_update_that_comes_when_all_handlers_have_ended_goes_to_the_next_run() -> None:
    bench = Bench(finish)
    bench.settle()
    bench.resume(bench.signal("leave"), bench.update("reserve", 4, "b"))
    bench.settle()
    assert bench.ended == "continued"
    assert UPDATE_ACCEPTED not in bench.types()
    [carried] = bench.details_of(CONTINUED)[0]["signals"]
    assert (carried["key"], carried["input"]) == ("b", 4)


def test_a_handler_cannot_wait_for_all_handlers() -> None:
    async def flow(ctx: Context) -> None:
        ctx.handle_update("end", ctx.finish_updates)
        await ctx.wait_for_signal("leave")

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.update("end", None, "a"))
    bench.settle()
    [answer] = bench.details_of(UPDATE_COMPLETED)
    assert "in the workflow's own task" in answer["error"]["message"]
