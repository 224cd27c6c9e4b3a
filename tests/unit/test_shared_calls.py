"""Calls of the same moment share one call of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.errors import DatabaseUnavailable, LockTimeout, PayloadError, TransientDatabaseError
from holdfast.store import shared_calls
from holdfast.store.shared_calls import Coalescer, Notifier
from holdfast.types import Notice


class Sender:
    """Records batches; answers n with 10 n once it is let."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.let = asyncio.Event()
        self.let.set()
        self.errors: list[Exception] = []

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append([*items])
        await self.let.wait()
        if self.errors:
            raise self.errors.pop(0)
        if -1 in items:
            raise PayloadError("-1 cannot be stored")
        return [10 * item for item in items]


async def test_an_idle_call_goes_out_at_once_and_alone() -> None:
    sender = Sender()
    coalescer = Coalescer(sender)
    assert await coalescer.submit(1) == 10
    assert await coalescer.submit(2) == 20
    assert sender.batches == [[1], [2]]


async def test_items_added_during_a_call_share_the_next_call() -> None:
    sender = Sender()
    sender.let.clear()
    coalescer = Coalescer(sender)
    first = asyncio.create_task(coalescer.submit(1))
    while not sender.batches:
        await asyncio.sleep(0)
    later = [asyncio.create_task(coalescer.submit(n)) for n in (2, 3, 4)]
    await asyncio.sleep(0)
    sender.let.set()
    assert await asyncio.gather(first, *later) == [10, 20, 30, 40]
    assert sender.batches == [[1], [2, 3, 4]]


async def test_no_item_waits_for_one_that_may_be_slow() -> None:
    sender, slow = Sender(), asyncio.Event()

    async def send(items: Sequence[int]) -> list[int]:
        if items[0] >= 100:
            await slow.wait()
        return await sender(items)

    coalescer = Coalescer(send, may_be_slow=lambda item: item >= 100)
    large = [asyncio.create_task(coalescer.submit(n)) for n in (100, 101)]
    assert await asyncio.gather(*map(coalescer.submit, (1, 2))) == [10, 20]
    assert sender.batches == [[1, 2]]
    closing = asyncio.create_task(coalescer.close())
    assert await coalescer.submit(3) == 30
    assert not closing.done()
    slow.set()
    await closing
    assert [task.result() for task in large] == [1000, 1010]


async def test_a_slow_item_that_is_refused_tells_its_caller() -> None:
    coalescer = Coalescer(Sender(), may_be_slow=lambda item: item < 0)
    with pytest.raises(PayloadError):
        await coalescer.submit(-1)
    await coalescer.close()


async def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_calls, "MAX_BATCH", 2)
    sender = Sender()
    coalescer = Coalescer(sender)
    answers = await asyncio.gather(*(coalescer.submit(n) for n in range(5)))
    assert answers == [0, 10, 20, 30, 40]
    assert [len(batch) for batch in sender.batches] == [2, 2, 1]


async def test_an_item_that_is_refused_fails_alone() -> None:
    """Trap 20."""
    coalescer = Coalescer(Sender())
    answers = await asyncio.gather(
        *(coalescer.submit(n) for n in (1, 2, -1, 4, 5)), return_exceptions=True
    )
    assert [answer for answer in answers if not isinstance(answer, PayloadError)] == [
        10,
        20,
        40,
        50,
    ]
    assert isinstance(answers[2], PayloadError)


async def test_a_call_with_a_transient_error_is_sent_again() -> None:
    sender = Sender()
    sender.errors = [TransientDatabaseError("deadlock"), TransientDatabaseError("deadlock")]
    assert await Coalescer(sender).submit(1) == 10
    assert len(sender.batches) == 3


async def test_without_a_database_all_callers_get_the_error_and_the_next_call_is_tried() -> None:
    sender = Sender()
    sender.errors = [DatabaseUnavailable("away")]
    coalescer = Coalescer(sender)
    told = await asyncio.gather(*(coalescer.submit(n) for n in (1, 2)), return_exceptions=True)
    assert [type(each) for each in told] == [DatabaseUnavailable] * 2
    assert await coalescer.submit(3) == 30


async def test_a_cancelled_caller_is_left_out_of_the_call() -> None:
    sender = Sender()
    sender.let.clear()
    coalescer = Coalescer(sender)
    first = asyncio.create_task(coalescer.submit(1))
    while not sender.batches:
        await asyncio.sleep(0)
    gone, stays = (asyncio.create_task(coalescer.submit(n)) for n in (2, 3))
    await asyncio.sleep(0)
    gone.cancel()
    first.cancel()
    sender.let.set()
    assert await stays == 30
    assert sender.batches == [[1], [3]]


async def test_a_close_does_not_wait_for_the_lock_of_another_transaction() -> None:
    sender = Sender()
    sender.errors = [LockTimeout("held")] * 1_000
    coalescer = Coalescer(sender)
    waits = asyncio.create_task(coalescer.submit(1))
    while len(sender.batches) < 2:
        await asyncio.sleep(0)
    await coalescer.close()
    with pytest.raises(LockTimeout):
        await waits
    assert len(sender.batches) < 10


async def test_a_close_does_not_wait_for_a_call_whose_caller_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_calls, "CLOSING_SECONDS", 0.01)
    sender = Sender()
    sender.let.clear()  # the database never answers
    coalescer = Coalescer(sender)
    gone = asyncio.create_task(coalescer.submit(1))
    while not sender.batches:
        await asyncio.sleep(0)
    gone.cancel()
    async with asyncio.timeout(60):
        await coalescer.close()


class Speaker:
    """Records notices; says them once it is let."""

    def __init__(self) -> None:
        self.said: list[list[Notice]] = []
        self.let = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, notices: Sequence[Notice]) -> None:
        self.said.append([*notices])
        await self.let.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error


A, B = Notice("work", "a"), Notice("work", "b")


async def test_equal_notices_that_wait_together_are_sent_once() -> None:
    speaker = Speaker()
    notifier = Notifier(speaker)
    notifier.submit([A])
    while not speaker.said:
        await asyncio.sleep(0)
    notifier.submit([A, B])
    notifier.submit([B, A])
    speaker.let.set()
    await notifier.stop()
    assert speaker.said == [[A], [A, B]]


async def test_a_notice_that_cannot_be_sent_is_dropped() -> None:
    speaker = Speaker()
    speaker.let.set()
    speaker.error = DatabaseUnavailable("away")
    notifier = Notifier(speaker)
    notifier.submit([A])
    await notifier.stop()
    notifier.submit([B])
    await notifier.stop()
    assert speaker.said == [[A], [B]]
