"""Waiting for messages by what they contain, beside many others."""

from __future__ import annotations

import asyncio
import json
import random
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from holdfast import Context
from holdfast.codec import contains
from holdfast.runtime.code import mailbox as mailboxes
from holdfast.runtime.code import patterns
from holdfast.runtime.code.mailbox import Mailbox, Message
from holdfast.runtime.code.run import Run
from holdfast.runtime.loop.loop import WorkflowLoop
from holdfast.types import JSON
from tests.runtime.bench import Bench


class Looks:
    """Counts how often payloads are decoded and compared."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.decoded = self.compared = 0
        read = mailboxes._read_plain

        def decode(text: Any) -> object:
            self.decoded += 1
            return read(text)

        def compare(value: object, pattern: object) -> bool:
            self.compared += 1
            return contains(value, pattern)

        patch.setattr(mailboxes, "_read_plain", decode)
        patch.setattr(patterns, "contains", compare)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def test_a_wait_beside_many_messages_looks_at_each_once(looks: Looks) -> None:
    async def flow(ctx: Context) -> object:
        return await ctx.wait_for_signal("go", match={"order": {"id": -1}})

    bench = Bench(flow)
    bench.refuse(*(bench.signal("go", {"order": {"id": n}}) for n in range(2000)))
    bench.settle()
    bench.resume(bench.signal("go", {"order": {"id": -1}, "by": "ann"}))
    bench.settle()
    assert bench.output == {"order": {"id": -1}, "by": "ann"}
    assert looks.decoded <= 2001
    assert looks.compared <= 2


@pytest.mark.parametrize("waits_first", [True, False])
@pytest.mark.parametrize("kind", ["own", "any"])
def test_waits_for_many_messages_decode_and_compare_each_a_few_times(
    looks: Looks, waits_first: bool, kind: str
) -> None:
    async def flow(ctx: Context) -> list[object]:
        if not waits_first:
            await ctx.wait_for_signal("begin")
        patterns = [{"kind": "order", "id": n} if kind == "own" else None for n in range(1000)]
        waits = (ctx.wait_for_signal("go", match=pattern) for pattern in patterns)
        return list(await asyncio.gather(*waits))

    bench = Bench(flow)
    sent = [{"id": n, "kind": "order"} for n in range(1000)]
    received = list(reversed(sent)) if kind == "own" else sent
    bench.refuse(*(bench.signal("go", payload) for payload in received), bench.signal("begin"))
    bench.settle()
    assert bench.output == sent
    assert looks.decoded <= 1000
    assert looks.compared <= 3000


def test_each_message_goes_to_the_wait_that_a_search_one_by_one_would_find() -> None:
    """The same as when every wait looks at every message, first in, first out."""
    chance = random.Random(7)
    scalars: list[Any] = [1, 1.0, True, None, "1", 1e30, 10**30, -0.0, 0]
    patterns: list[Any] = [None, {}, 1, [], [1], {"a": [1]}, {"a": {"b": 1}}]
    patterns += [{"a": one} for one in scalars] + [{"a": one, "b": 2} for one in scalars[:4]]
    payloads: list[Any] = [{"a": one, "b": two} for one in scalars for two in (2, [1])]
    payloads += [1, [1, 2], [], {}, {"a": {"b": 1}}, {"a": [1, 2]}, {"b": 2}, None]
    for _ in range(40):
        wanted = [chance.choice(patterns) for _ in range(12)]
        sent = [chance.choice(payloads) for _ in range(12)]
        early = chance.randrange(12)
        assert _taken(wanted, sent, early) == _one_by_one(wanted, sent, early)


def _taken(wanted: list[Any], sent: list[Any], early: int) -> list[Any]:
    """Return which message each wait takes; the first ones were there before."""
    taken: dict[int, Any] = {}

    async def flow(ctx: Context) -> None:
        await ctx.wait_for_signal("begin")

        async def wait(place: int) -> None:
            taken[place] = await ctx.wait_for_signal("go", match=wanted[place])

        await asyncio.gather(*(wait(place) for place in range(len(wanted))))

    bench = Bench(flow)
    signals = [bench.signal("go", payload) for payload in sent]
    bench.refuse(*signals[:early], bench.signal("begin"), *signals[early:])
    return [json.dumps(taken.get(place, "nothing")) for place in range(len(wanted))]


def _one_by_one(wanted: list[Any], sent: list[Any], early: int) -> list[Any]:
    there, waiting, taken = list(sent[:early]), list[int](), dict[int, Any]()
    for place, pattern in enumerate(wanted):
        found = next((p for p in there if pattern is None or contains(p, pattern)), waiting)
        if found is waiting:
            waiting.append(place)
        else:
            del there[next(n for n, p in enumerate(there) if p is found)]
            taken[place] = found
    for payload in sent[early:]:
        for place in waiting:
            if wanted[place] is None or contains(payload, wanted[place]):
                taken[place] = payload
                waiting.remove(place)
                break
    return [json.dumps(taken.get(place, "nothing")) for place in range(len(wanted))]


@pytest.mark.parametrize("match", [None, {"n": 1}])
def test_a_message_whose_first_waiter_is_cancelled_goes_to_the_next(match: JSON) -> None:
    """Trap 2. It is not lost, and nobody else gets it twice."""
    loop = WorkflowLoop(1)  # type: ignore[abstract]
    run = SimpleNamespace(loop=loop, history=SimpleNamespace(position=1))
    mailbox = Mailbox(cast("Run", run))
    waits = [loop.create_task(mailbox.take("go", match)) for _ in range(3)]
    loop.drain()
    for n in range(2):
        mailbox.put(Message("go", msgspec.Raw(b'{"n": 1}'), str(n)))
        waits[0].cancel()  # as it was woken, and before it runs
        loop.drain()
    assert waits[0].cancelled()
    assert [bytes(wait.result().message.payload) for wait in waits[1:]] == [b'{"n": 1}'] * 2
    assert (mailbox.unread, mailbox.awaited) == ([], ())
    loop.drop()


def test_nothing_is_kept_of_names_that_nobody_waits_for() -> None:
    async def flow(ctx: Context) -> int:
        for n in range(50):
            await ctx.wait_for_signal(f"reply-{n}", match={"n": n})
        return len(ctx._run.ledger(Mailbox)._boxes)

    bench = Bench(flow)
    bench.refuse(*(bench.signal(f"reply-{n}", {"n": n}) for n in range(50)))
    bench.settle()
    assert bench.output == 0
