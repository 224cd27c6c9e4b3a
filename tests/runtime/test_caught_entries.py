"""Which exceptions the entries of a log explain: those of a type and place, not any that follow.

Fault: a bug of a deploy compensated and failed runs whose code had handled another exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from typing import Never

import pytest

from holdfast import Context
from holdfast.errors import InvalidInput
from holdfast.events import VALUE_RECORDED
from holdfast.types import Event
from tests.runtime.bench import SECOND, Bench, Code
from tests.runtime.test_caught import bug, in_finally, paid
from tests.runtime.test_caught_changes import Bad, finish
from tests.runtime.test_raised import pay, recorded

refund, notify = recorded("refund"), recorded("notify")
PASSED = "at a place that older code has passed, and makes the new call"


class Stop(BaseException):
    pass


CONSTANT = Bad("not ready")


def polling(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        await pay(1)
        try:
            try:
                bug(is_new)
                raise Bad("not ready")
            except Bad:
                await ctx.wait_for_signal("go")
        except Exception:
            await refund(1)
            raise

    return code


def without_the_exception(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        try:
            if not is_new:
                raise Bad("no stock")
        except Bad:
            await pay(1)
        else:
            await pay(1)
        try:
            bug(is_new)
            await ctx.wait_for_signal("go")
        finally:
            await refund(1)

    return code


def in_another_function(is_new: bool) -> Code:
    def check() -> None:
        raise Bad("no stock")

    async def code(ctx: Context) -> None:
        with contextlib.suppress(Bad):
            if not is_new:
                check()
        try:
            if not is_new:
                raise Bad("no stock")
            await pay(1)
        except Bad:
            await pay(1)
        try:
            if is_new:
                check()
            await ctx.wait_for_signal("go")
        finally:
            await refund(1)

    return code


def kept(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        error = Bad("no stock")
        try:
            raise error
        except Bad:
            await pay(1)
        try:
            if is_new:
                raise error
            await ctx.wait_for_signal("go")
        finally:
            await refund(1)

    return code


def by_an_input(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        try:
            await pay(1)
            if is_new:
                raise InvalidInput("a bug")
            await ctx.wait_for_signal("go")
        finally:
            await refund(1)

    return code


def by_attributes(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        try:
            await pay(1)
            if is_new:
                ctx.set_attributes(total=object())  # type: ignore[arg-type]
            await ctx.wait_for_signal("go")
        finally:
            await refund(1)

    return code


def by(make: Callable[[], BaseException]) -> Callable[[bool], Code]:
    def version(is_new: bool) -> Code:
        async def code(ctx: Context) -> None:
            try:
                await pay(1)
                if is_new:
                    raise make()
                await ctx.wait_for_signal("go")
            finally:
                await refund(1)

        return code

    return version


VERSIONS = {
    "another exception at the same place": polling,
    "an exception that is gone": without_the_exception,
    "the same type in another function": in_another_function,
    "an exception that is raised again": kept,
    "an InvalidInput of the code": by_an_input,
    "an InvalidInput of a call": by_attributes,
    "sys.exit()": by(lambda: SystemExit("the setting SHOP is missing")),
    "a BaseException": by(Stop),
    "a group": by(lambda: BaseExceptionGroup("all", [SystemExit(1)])),
    "a cancel of the code": by(asyncio.CancelledError),
    "a GeneratorExit of the code": by(GeneratorExit),
}


JUDGED = (polling, without_the_exception, in_another_function, kept)  # by earlier releases


@pytest.mark.parametrize("name", VERSIONS)
def test_an_entry_does_not_explain_what_older_code_did_not_raise(name: str) -> None:
    version = VERSIONS[name]
    bench = paid(version(False))
    length = len(bench.log)
    bench.crash(version(True))
    bench.settle()
    assert PASSED in str(bench.stuck)
    assert not bench.starts
    assert [event.type for event in bench.log[length:]] == ["WorkerLost"]
    bench.crash(version(False))
    finish(bench)


@pytest.mark.parametrize("name", VERSIONS)
def test_code_that_has_raised_so_from_its_beginning_continues_after_each_crash(name: str) -> None:
    version = VERSIONS[name]
    bench = Bench(version(True))
    for _ in range(20):
        bench.settle()
        if bench.ended:
            return
        bench.crash()
        bench.settle()
        assert bench.stuck is None
        for key in list(bench.starts):
            bench.complete(key, 1)
        if bench.suspended:
            bench.resume(bench.signal("go"))
    raise AssertionError("it does not end")


@pytest.mark.parametrize("becomes", ["a new one", "a wrapper", "one with a cause", "later"])
def test_what_older_code_raised_may_be_raised_otherwise(becomes: str) -> None:
    def look(is_new: bool) -> Never:
        if not is_new:
            raise CONSTANT
        if becomes == "a new one":
            raise Bad("not ready")
        if becomes == "a wrapper":
            try:
                raise CONSTANT
            except Bad as error:
                raise ValueError("no order") from error
        try:
            raise KeyError("rate")
        except KeyError as error:
            raise Bad("not ready") from error

    def version(is_new: bool) -> Code:
        async def code(ctx: Context) -> str:
            await pay(1)
            if is_new and becomes == "later":
                await ctx.wait_for_signal("other")
            for _ in range(3):
                try:
                    look(is_new)
                except (Bad, ValueError):
                    await ctx.wait_for_signal("go")
            return "done"

        return code

    bench = paid(version(False))
    bench.resume(bench.signal("other"), bench.signal("go"))
    bench.settle()
    assert len(bench.of_type(VALUE_RECORDED)) == 2
    bench.crash(version(True))
    finish(bench)
    assert bench.output == "done"


def test_a_value_that_never_fitted_is_explained_by_its_misfit() -> None:
    async def code(ctx: Context) -> str:
        await pay(1)
        try:
            await ctx.wait_for_signal("count", type=int)
        except InvalidInput:
            await ctx.wait_for_signal("go")
        return "done"

    bench = paid(code)
    bench.resume(bench.signal("count", "many"))
    bench.settle()
    assert [event.key for event in bench.of_type(VALUE_RECORDED)] == ["misfit:signal.count"]
    bench.crash()
    finish(bench)
    assert bench.output == "done"


def cleaning(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        await pay(1)
        try:
            bug(is_new)
            await ctx.wait_for_signal("never")
        finally:
            await notify(1)
            await asyncio.sleep(3600)
            await refund(1)

    return code


def test_a_bug_does_not_end_the_cleanup_of_a_cancelled_run() -> None:
    bench = paid(cleaning(False))
    bench.resume(bench.cancel_request())
    bench.complete("notify", 1)
    bench.settle()
    assert bench.suspended
    bench.crash(cleaning(True))
    bench.settle()
    assert "a cancel has ended what it did because of it" in str(bench.stuck)
    bench.crash(cleaning(False))
    bench.settle()
    bench.now += 4000 * SECOND
    bench.resume()
    bench.settle()
    assert bench.starts == ["refund"]
    bench.complete("refund", 1)
    bench.settle()
    assert bench.ended == "cancelled"


def test_a_cancel_ends_a_run_that_a_bug_has_stopped() -> None:
    bench = paid(in_finally(False))
    bench.log.append(bench.cancel_request())
    bench.crash(in_finally(True))
    bench.settle()
    assert bench.ended == "cancelled"


def as_before(bench: Bench) -> None:
    """Let the log be one that the release before has written."""

    def older(event: Event) -> Event:
        text = re.sub(',"caught":2', ',"caught":true', event.details or "null")
        if (event.key or "").startswith("caught:"):
            text = '{"value":true}'
        return Event(event.type, event.key, text, event.at)

    bench.log[1:] = [older(event) for event in bench.log[1:]]


@pytest.mark.parametrize("name", VERSIONS)
def test_an_earlier_release_does_not_say_which_exceptions_there_were(name: str) -> None:
    """It did not record those of some kinds at all: what was not judged then is not judged now."""
    version = VERSIONS[name]
    bench = Bench(version(True))
    for _ in range(20):
        as_before(bench)
        if version not in JUDGED:
            bench.log[:] = [each for each in bench.log if "caught:" not in (each.key or "")]
        bench.crash()
        bench.settle()
        assert bench.stuck is None
        if bench.ended:
            return
        for key in list(bench.starts):
            bench.complete(key, 1)
            bench.settle()
        if bench.suspended:
            bench.resume(bench.signal("go"))
            bench.settle()
        if bench.ended:
            return
    raise AssertionError("it does not end")


@pytest.mark.parametrize("key", [None, "caught:pay", "caught:~/update-bump/s"])
def test_an_entry_of_an_earlier_release_in_a_new_log(key: str | None) -> None:
    def version(is_new: bool) -> Code:
        async def code(ctx: Context) -> str:
            await pay(1)
            try:
                raise KeyError("rate") if is_new else Bad("not ready")
            except (Bad, KeyError):
                await ctx.wait_for_signal("go")
            return "done"

        return code

    bench = paid(version(False))
    bench.log[:] = [
        each
        if each.type != VALUE_RECORDED
        else Event(each.type, key or each.key, '{"value":true}', 0)
        for each in bench.log
    ]
    bench.crash(version(True))
    finish(bench)
    assert bench.output == "done"


def untold(events: list[Event]) -> list[Event]:
    """Return the entries that a worker of an earlier release would have written in their place."""
    return [event for event in events if not (event.key or "").startswith("caught:")]


@pytest.mark.parametrize("period", [2, 3])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", VERSIONS)
def test_workers_of_several_releases_continue_a_run_in_turns(
    name: str, first: int, period: int
) -> None:
    """Every second or third part of the log does not say which exceptions there were."""
    bench = Bench(VERSIONS[name](True), tells="nothing")
    part = first
    for _ in range(20):
        length = len(bench.log)
        bench.settle()
        for key in list(bench.starts):
            bench.complete(key, 1)
        bench.settle()
        assert bench.stuck is None
        if bench.ended:
            return
        if part % period:
            bench.log[length:] = untold(bench.log[length:])
        part += 1
        bench.log += [bench.signal("go")] if bench.suspended else []
        bench.crash()
    raise AssertionError("it does not end")


@pytest.mark.parametrize("name", VERSIONS)
def test_a_worker_that_has_kept_a_run_continues_after_one_of_an_earlier_release(name: str) -> None:
    async def code(ctx: Context) -> str:
        await ctx.wait_for_signal("first")
        with contextlib.suppress(BaseException):
            await VERSIONS[name](True)(ctx)
        return "done"

    bench = Bench(code, tells="nothing")
    bench.settle()
    kept, length = bench.turn, len(bench.log)
    bench.log.append(bench.signal("first"))
    bench.claim()
    bench.settle()
    bench.complete("pay", 1)
    bench.settle()
    tail = untold(bench.log[length:])
    bench.log[length:] = tail
    bench.turn, bench.lease = kept, bench.lease + 1
    bench.take(kept.resume(bench.lease, tail))
    finish(bench)
    assert bench.output == "done"


def test_a_log_says_nothing_of_exceptions_if_other_releases_may_continue_it() -> None:
    told, silent = paid(polling(False)), Bench(polling(False), tells="nothing")
    silent.complete("pay", 1)
    silent.settle()
    assert '"caught":2' in (told.log[1].details or "")
    assert "caught" not in (silent.log[1].details or "")
