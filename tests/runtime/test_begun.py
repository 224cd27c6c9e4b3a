"""The log says that a transaction begins whose record follows its commit: what comes of that."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import pytest
from msgspec.structs import replace

from holdfast import App, Context, Database
from holdfast.errors import StepFailed
from holdfast.events import FAILED, FORKED, RESUMED, STEP_FAILED, VALUE_RECORDED
from holdfast.runtime.turn.checking import replay_to_end
from holdfast.types import Event

from .bench import Bench, Code

app = App("bookings")
accounts = Database("postgresql://app@one/accounts", schema="books")
BEGUN = "begun:book"


@app.transaction(database=accounts)
async def book(connection: asyncpg.Connection, n: int) -> int:
    raise AssertionError("the bench says what it returns")


@app.transaction
async def note(connection: asyncpg.Connection, n: int) -> int:
    raise AssertionError("the bench says what it returns")


@app.step
async def mail(n: int) -> int:
    raise AssertionError("the bench says what it returns")


async def first(ctx: Context) -> list[int]:
    return [await book(1), await mail(2)]


async def second(ctx: Context) -> list[int]:
    return [await mail(2), await book(1)]


async def both(ctx: Context) -> list[int]:
    return list(await asyncio.gather(book(1), book(2), mail(3)))


async def take(n: int) -> int:
    return await book(n)


async def moved(ctx: Context) -> list[int]:
    return [*await asyncio.gather(take(1)), await mail(2)]


async def patched(ctx: Context) -> list[int]:
    if ctx.patched("moved"):
        return await moved(ctx)
    return await first(ctx)


async def none(ctx: Context) -> list[int]:
    return [await mail(2)]


def begun(code: Code = first) -> Bench:
    """Return a run that has begun a transaction."""
    bench = Bench(code)
    assert bench.starts == []
    bench.settle()
    return bench


def keys(bench: Bench) -> list[str]:
    return [event.key or "" for event in bench.of_type(VALUE_RECORDED)]


def test_it_begins_when_the_log_says_so_and_once() -> None:
    bench = begun()
    assert (bench.starts, keys(bench)) == (["book"], [BEGUN])
    assert bench.details_of(VALUE_RECORDED)[0]["value"]["place"] == "accounts/books"
    bench.crash()
    assert (bench.starts, keys(bench)) == (["book"], [BEGUN])
    bench.complete("book", 1)
    bench.settle()
    bench.complete("mail", 2)
    bench.settle()
    assert (bench.output, keys(bench)) == ([1, 2], [BEGUN])


def test_the_entry_is_in_the_commit_of_what_led_to_it() -> None:
    bench = Bench(second)
    bench.complete("mail", 2)
    part = bench.commit()
    assert [event.key for event in part.events] == ["mail", BEGUN]
    assert bench.starts == ["mail", "book"]


def test_it_does_not_begin_before_a_conflict_has_passed() -> None:
    bench = Bench(both)
    bench.refuse(bench.signal("hello"))
    assert bench.starts == []
    bench.refuse(bench.interruption())
    assert bench.starts == []
    bench.settle()
    assert bench.starts == ["book", "book#2", "mail"]
    assert keys(bench) == [BEGUN, f"{BEGUN}#2"]


def test_a_worker_that_is_lost_before_the_commit_has_begun_nothing() -> None:
    bench = Bench(first)
    assert bench.starts == []
    bench.crash(moved)
    bench.settle()
    assert bench.starts == ["take/book"]


def test_others_begin_without_an_entry() -> None:
    async def code(ctx: Context) -> int:
        return await note(1)

    bench = Bench(code)
    assert (bench.starts, bench.commit_due) == (["note"], None)


@pytest.mark.parametrize("code", [moved, none, second])
def test_the_run_starts_nothing_else_and_a_roll_back_heals(code: Code) -> None:
    bench = begun()
    bench.crash(code)
    assert "transaction book under 'book'" in str(bench.stuck)
    assert bench.starts == []
    bench.settle()
    bench.crash(first)
    assert (bench.starts, keys(bench)) == (["book"], [BEGUN])


def test_a_patch_keeps_the_old_path() -> None:
    bench = begun()
    bench.crash(patched)
    assert bench.starts == ["book"]


def test_careless_code_starts_it() -> None:
    bench = begun()
    bench.careful = False
    bench.crash(moved)
    bench.settle()
    assert bench.starts == ["take/book"]


def other_place(n: int) -> Code:
    """Return code that makes the call at another place: in which database, or in none."""
    shop = App("bookings")
    there = Database("postgresql://app@one/accounts", schema="others")
    named = Database("postgresql://app@one/accounts?dbname=others", schema="books")
    made = [
        lambda: shop.step(name="book")(mail.fn),
        lambda: shop.transaction(name="book")(book.fn),
        lambda: shop.transaction(name="book", database=there)(book.fn),
        lambda: shop.transaction(name="book", database=named)(book.fn),
        lambda: shop.transaction(name="book", isolation="serializable")(book.fn),
    ][n]()

    async def code(ctx: Context) -> list[int]:
        return [await made(1), await mail(2)]

    return code


@pytest.mark.parametrize("n", range(5))
@pytest.mark.parametrize("tried", [False, True])
def test_another_place_is_named(n: int, tried: bool) -> None:
    bench = begun()
    if tried:
        bench.fail("book", OSError("away"), retry_in=1)
        bench.settle()
    bench.crash(other_place(n))
    if tried:
        bench.pass_time(2)
    assert "accounts/books" in str(bench.stuck)
    assert bench.starts == []


@pytest.mark.parametrize("n", range(5))
def test_where_it_began_does_not_matter_once_the_log_has_its_end(n: int) -> None:
    bench = begun()
    bench.complete("book", 1)
    bench.settle()
    bench.crash(other_place(n))
    assert bench.stuck is None
    assert bench.starts == ["mail"]
    bench.complete("mail", 2)
    bench.settle()
    assert bench.output == [1, 2]


def test_another_host_is_the_same_place() -> None:
    shop = App("bookings")
    there = Database(
        "postgresql://app:secret@two:5433/?sslmode=require&dbname=accounts", schema="books"
    )
    made = shop.transaction(name="book", database=there)(book.fn)

    async def code(ctx: Context) -> list[int]:
        return [await made(1), await mail(2)]

    bench = begun()
    bench.crash(code)
    assert bench.starts == ["book"]


@pytest.mark.parametrize("password", ["p[w", "p#w", "p%40w", "p@w"])
def test_any_password_leaves_the_name_of_the_database(password: str) -> None:
    there = Database(f"postgresql://app:{password}@two/accounts", schema="books")
    assert App("bookings").transaction(name="book", database=there)(book.fn).place == (
        "accounts/books"
    )


def test_a_call_that_was_given_up_does_not_count() -> None:
    async def code(ctx: Context) -> int:
        try:
            async with asyncio.timeout(5):
                await book(1)
        except TimeoutError:
            return await mail(2)
        raise AssertionError("it is too slow")

    bench = begun(code)
    bench.pass_time(6)
    bench.settle()
    assert bench.starts == ["book", "mail"]
    bench.crash()
    assert (bench.stuck, bench.starts) == (None, ["mail"])


def test_a_pause_begins_nothing() -> None:
    bench = Bench(second)
    bench.news(bench.plain("WorkflowPaused"))
    bench.complete("mail", 2)
    bench.settle()
    assert keys(bench) == []
    bench.resume(bench.plain(RESUMED))
    bench.settle()
    assert (keys(bench), bench.starts) == ([BEGUN], ["mail", "book"])


def test_a_stuck_run_does_not_begin_it() -> None:
    """Fault: other code could not continue the run, although nothing had begun."""

    def version(is_new: bool) -> Code:
        async def code(ctx: Context) -> None:
            first, second, third = (asyncio.create_task(mail(n)) for n in range(3))
            await first
            await second
            beside = asyncio.create_task(book(1)) if is_new else None
            await third
            if is_new:
                asyncio.get_running_loop().run_in_executor(None, print)
            await (beside or ctx.wait_for_signal("never"))

        return code

    bench = Bench(version(True))
    first, second, third = bench.starts
    for key in (first, second, third):
        bench.complete(key, 1)
    bench.settle()
    assert bench.stuck is not None
    assert (keys(bench), len(bench.of_type("StepCompleted"))) == ([], 3)
    bench.crash(version(False))
    assert bench.stuck is None


def test_an_alias_finds_it() -> None:
    shop = App("bookings")
    made = shop.transaction(name="reserve", aliases=["book"], database=accounts)(book.fn)

    async def code(ctx: Context) -> list[int]:
        return [await made(1), await mail(2)]

    bench = begun()
    bench.crash(code)
    assert (bench.starts, keys(bench)) == (["book"], [BEGUN])


def test_a_fork_begins_it_again() -> None:
    """With code of its own: its transactions are those of another run."""
    bench = begun()
    fork = {"run_id": str(bench.run_id), "idx": 2, "seed": str(bench.run_id), "again": []}
    bench.log.append(Event(FORKED, None, json.dumps(fork), bench.now))
    bench.crash(moved)
    bench.settle()
    assert bench.starts == ["take/book"]


@pytest.mark.parametrize("again", [[], ["book"], None])
def test_a_retry_takes_what_it_does_not_make_again(again: list[str] | None) -> None:
    bench = begun()
    fork = {"run_id": str(bench.run_id), "idx": 2, "seed": str(bench.run_id), "again": again}
    bench.log.append(Event(FORKED, None, json.dumps({**fork, "after": []}), bench.now))
    bench.crash(moved)
    bench.settle()
    assert (bench.stuck is None) == (again == ["book"])


def beside(call: Code) -> Code:
    """Return code that makes a call beside a step whose failure ends the run."""

    async def code(ctx: Context) -> list[int]:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(call(1))
            second = group.create_task(mail(2))
        return [first.result(), second.result(), await mail(3)]

    return code


def retried(bench: Bench, code: Code, *, is_attempt: bool) -> None:
    """Let a run fail of its mail while its transaction may have committed, and retry it."""
    key = next(key for key in bench.starts if key.endswith("mail"))
    bench.fail(key, OSError("away"))
    bench.settle()
    said = bench.details_of(FAILED)[0]
    fork = {"run_id": str(bench.run_id), "idx": len(bench.log), "seed": str(bench.run_id)}
    if is_attempt:
        attempt = {"number": 1, "attempts": 2, "delay": 1, "run_id": str(bench.run_id)}
        fork["attempt"], fork["error"] = attempt, {"kind": "OSError", "message": "away"}
    fork |= {"again": said["calls"], "after": said.get("after", [])}
    bench.log = [event for event in bench.log if event.type not in (STEP_FAILED, FAILED)]
    bench.log.append(Event(FORKED, None, json.dumps(fork), bench.now))
    bench.claim(code)
    bench.settle()


renamed = App("bookings").transaction(name="reserve", database=accounts)(book.fn)
plain = App("bookings").step(name="reserve")(mail.fn)


async def other_arguments(n: int) -> int:
    return await book(n + 10)


@pytest.mark.parametrize("is_attempt", [False, True])
@pytest.mark.parametrize("call", [renamed, plain, other_arguments, take])
def test_a_retry_does_not_make_it_again_under_another_name(call: Code, is_attempt: bool) -> None:
    """Fault: it was committed twice, since copied calls may come later than what failed."""
    bench = Bench(beside(book))
    bench.settle()
    retried(bench, beside(call), is_attempt=is_attempt)
    assert "book" in str(bench.stuck)
    assert bench.starts == []
    bench.crash(beside(book))
    assert sorted(bench.starts) == ["book", "mail"]


def without_told(event: Event) -> Event:
    """Return an entry as earlier releases wrote it: they did not say what the code was told of."""
    text = event.details or ""
    return replace(event, details=text.replace(',"told":["mail"]', ""))


@pytest.mark.parametrize("tells", [True, False], ids=["told", "an earlier release"])
def test_a_retry_need_not_make_it_if_a_failure_led_to_it(tells: bool) -> None:
    async def code(ctx: Context) -> int:
        failed = asyncio.Event()

        async def watch() -> None:
            await failed.wait()
            await book(1)

        watching = asyncio.create_task(watch(), name="watch")
        try:
            found = await mail(1)
        except StepFailed:
            failed.set()
            await ctx.sleep(1)
            raise
        watching.cancel()
        return found + await mail(2)

    bench = Bench(code)
    bench.fail("mail", OSError("away"))
    bench.settle()
    assert keys(bench) == ["begun:watch/book"]
    bench.now += 2_000_000
    bench.take(bench.turn.wake())
    bench.settle()
    assert bench.types()[-1] == FAILED
    log = [event if tells else without_told(event) for event in bench.log[:-1]]
    bench.log = [event for event in log if event.type not in (STEP_FAILED, "TimerFired")]
    fork = {"run_id": str(bench.run_id), "idx": 9, "seed": str(bench.run_id), "again": ["mail"]}
    bench.log.append(Event(FORKED, None, json.dumps({**fork, "after": []}), bench.now))
    bench.claim()
    assert (bench.stuck, bench.starts) == (None, ["mail"])
    bench.complete("mail", 1)
    bench.settle()
    bench.complete("mail#2", 1)
    assert bench.stuck is None


def test_a_log_of_an_earlier_release_is_replayed() -> None:
    bench = begun()
    bench.complete("book", 1)
    bench.settle()
    bench.complete("mail", 2)
    bench.settle()
    log = [event for event in bench.log if event.type != VALUE_RECORDED]
    turn = bench.turn
    replay_to_end(turn.instance.workflow, turn.info, log, end=log[-1].type)
    bench.log = log[:2]
    bench.claim()
    assert (bench.starts, bench.commit_due) == (["mail"], None)


def test_the_entry_alone_stands_for_the_call() -> None:
    """An earlier release does not read it: a run that goes back to one has begun it, too."""
    bench = begun()
    bench.log[1] = Event(VALUE_RECORDED, "begun:other", bench.log[1].details, bench.now)
    bench.claim()
    assert "transaction book under 'other'" in str(bench.stuck)


def test_a_run_that_is_given_up_does_not_begin_it() -> None:
    """Its worker records what its steps returned; the transaction waits for an answer."""

    async def code(ctx: Context) -> list[int]:
        beside = asyncio.create_task(mail(1))
        await mail(2)
        return [await book(1), await beside]

    bench = Bench(code)
    for key in reversed(bench.starts):
        bench.complete(key, 1)
    assert [event.key for event in bench.unrecorded()] == ["mail", "mail#2"]
