"""Policies whose `should_retry` is async: what it returns is awaited before the next attempt."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import pytest

from holdfast import App, Context, Retry
from holdfast.errors import ActivityFailed, StepFailed
from holdfast.testing import Environment

tries: Counter[str] = Counter()


async def may_help(error: BaseException) -> bool:
    """Ask something that answers later; a KeyError breaks it."""
    await asyncio.sleep(0)
    if isinstance(error, KeyError):
        raise error
    if isinstance(error, LookupError):
        sys.exit("a command line inside")
    return not isinstance(error, ValueError)


class Asking:
    """A callable object whose call is async."""

    async def __call__(self, error: BaseException) -> bool:
        return await may_help(error)


app = App("asks")
POLICY = Retry(attempts=3, base="1s", should_retry=may_help)


def fail(what: str) -> None:
    """Count a try, and fail as `what` says."""
    tries[what] += 1
    kinds = {"refused": ValueError, "broken": KeyError, "exits": LookupError}
    raise kinds.get(what, RuntimeError)(what)


@app.step(retry=POLICY)
async def step(what: str) -> None:
    fail(what)


@app.step(retry=Retry(attempts=3, should_retry=Asking()))
def in_thread(what: str) -> None:
    fail(what)


@app.step(retry=POLICY, timeout="1s")
async def late(what: str) -> None:
    tries[what] += 1
    await asyncio.Event().wait()


@app.activity(retry=POLICY)
async def activity(what: str) -> None:
    fail(what)


CALLS = {"step": step, "in_thread": in_thread, "activity": activity}


@app.workflow
async def calls(ctx: Context, call: tuple[str, str]) -> str:
    kind, what = call
    try:
        await (late if what == "late" else CALLS[kind])(what)
    except (StepFailed, ActivityFailed) as error:
        return str(error.__class__.__name__)
    return "done"


@pytest.mark.parametrize(
    ("kind", "what", "count"),
    [
        *((kind, "refused", 1) for kind in CALLS),
        ("step", "broken", 1),
        *((kind, "exits", 1) for kind in CALLS),
        ("in_thread", "transient", 3),
        ("activity", "transient", 3),
        ("step", "late", 3),
    ],
)
async def test_what_an_async_should_retry_says_is_awaited(kind: str, what: str, count: int) -> None:
    """One that raises says no, as a plain one that raises does."""
    tries.clear()
    async with Environment(app) as env:
        handle = await env.client.start(calls, (kind, what))
        assert (await env.result(handle)).endswith("Failed" if what != "late" else "TimedOut")
    assert tries == {what: count}
