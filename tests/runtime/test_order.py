"""Sets of futures iterate in the same order on each replay, however the futures were made."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine

import pytest

from holdfast import Context
from holdfast.runtime.loop.asyncio_forms import OrderedSet
from tests.runtime.bench import Bench, work


def by_gather() -> asyncio.Future[list[int]]:
    async def one() -> int:
        return 1

    return asyncio.gather(one())


def by_hand() -> asyncio.Future[list[int]]:
    future: asyncio.Future[list[int]] = asyncio.Future()
    future.set_result([1])
    return future


def waits_for(
    made: Callable[[], asyncio.Future[list[int]]],
) -> Callable[[Context], Coroutine[object, object, None]]:
    async def flow(ctx: Context) -> None:
        futures = [made() for _ in range(12)]
        done, pending = await asyncio.wait([*futures, never()], return_when="FIRST_COMPLETED")
        while len(done) < len(futures):
            more, pending = await asyncio.wait(pending, return_when="FIRST_COMPLETED")
            done = done | more
        for future in done - {futures[3]}:
            await work(futures.index(future))

    return flow


def never() -> asyncio.Future[list[int]]:
    """A future that is never done: what is waited for is told from it."""
    return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("made", [by_gather, by_hand])
def test_wait_returns_its_futures_in_the_same_order_on_each_replay(
    made: Callable[[], asyncio.Future[list[int]]],
) -> None:
    """Trap 5."""
    bench = Bench(waits_for(made))
    kept: list[object] = []  # other objects, so that addresses differ
    for number in range(11):
        bench.complete(bench.starts[-1])
        if number < 10:
            bench.commit()
            kept.append([bytearray(64 + number) for _ in range(number)])
            bench.crash()
            assert bench.stuck is None


def test_wait_keeps_the_order_of_plain_futures() -> None:
    async def flow(ctx: Context) -> list[list[int]]:
        futures = [by_hand() for _ in range(50)]
        waiting: list[asyncio.Future[list[int]]] = [asyncio.Future() for _ in range(50)]
        done, pending = await asyncio.wait([*futures, *waiting], return_when="FIRST_COMPLETED")
        assert type(done) is OrderedSet
        return [[futures.index(one) for one in done], [waiting.index(one) for one in pending]]

    bench = Bench(flow)
    bench.settle()
    assert bench.output == [list(range(50))] * 2


def test_all_tasks_are_in_the_order_in_which_they_were_made() -> None:
    """Not in that of a set: numbers that fall on the same place of it come as asyncio found them.

    asyncio finds tasks among those of all runs, so the order would be another on each replay.
    """

    async def flow(ctx: Context) -> list[str]:
        made: list[str] = []
        for number in range(40):
            task = asyncio.create_task(work(number))
            made.append(task.get_name())
            for _ in range(7 * (number % 5)):
                never()  # takes a number, too
        me = asyncio.current_task()
        found = [task.get_name() for task in asyncio.all_tasks() - {me}]
        assert found == made
        for task in asyncio.all_tasks() - {me}:
            task.cancel()
        await asyncio.sleep(0)
        return [task.get_name() for task in asyncio.all_tasks()]

    bench = Bench(flow)
    bench.settle()
    assert bench.output == ["flow"]


def test_numbered_futures_come_in_plain_sets() -> None:
    async def flow(ctx: Context) -> bool:
        done, pending = await asyncio.wait([by_gather()])
        return type(done) is set and type(pending) is set

    bench = Bench(flow)
    bench.settle()
    assert bench.output is True


def test_an_ordered_set_keeps_its_order_through_what_is_made_of_it() -> None:
    given = OrderedSet([5, 3, 9, 1])
    given.add(2)
    given.discard(3)
    given.add(3)
    given |= {7}
    assert list(given) == [5, 9, 1, 2, 3, 7]
    assert list(given - {9}) == [5, 1, 2, 3, 7]
    assert list(given & {3, 5}) == list({3, 5} & given) == [5, 3]
    assert list(given | [4, 9]) == [5, 9, 1, 2, 3, 7, 4]
    assert list(given.copy()) == [*given]
    assert (given.pop(), len(given)) == (5, 5)
    assert given == {9, 1, 2, 3, 7}


def test_an_ordered_set_has_in_order_what_only_one_of_two_sets_has() -> None:
    given = OrderedSet([5, 3, 9, 1])
    assert list(given ^ {3, 7}) == list({3, 7} ^ given) == [5, 9, 1, 7]
    given ^= OrderedSet([3, 7])
    given.symmetric_difference_update([9, 2])
    assert list(given) == [5, 1, 7, 2]
    assert len(given) == 4


def test_other_loops_keep_asyncios_own_forms() -> None:
    async def main() -> tuple[int, bool]:
        future: asyncio.Future[int] = asyncio.Future()
        future.set_result(1)
        done, _ = await asyncio.wait([future, asyncio.gather(asyncio.sleep(0))])
        return len(done), type(done) is set

    assert asyncio.run(main()) == (2, True)
    code = "import asyncio; import holdfast.runtime.code.instance; print(asyncio.wait.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "wait"
