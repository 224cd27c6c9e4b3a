"""Nobody waits for an event loop of a synchronous client that does not run any more."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import ConfigurationError
from holdfast.sync.portal import Portal


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal(lambda: None)
    portal.open()
    yield portal
    portal.close()


async def never(begun: threading.Event) -> None:
    begun.set()
    await asyncio.Event().wait()


async def nothing() -> None:
    pass


def test_a_call_raises_if_another_thread_closes_the_portal(portal: Portal) -> None:
    with ThreadPoolExecutor() as threads:
        begun = threading.Event()
        call = threads.submit(portal.call, never(begun))
        assert begun.wait(30)
        for closing in [threads.submit(portal.close) for _ in range(3)]:
            closing.result(30)
        with pytest.raises(ConfigurationError, match="not open"):
            call.result(30)


def test_a_call_raises_if_the_portal_is_closed_and_opened_again(portal: Portal) -> None:
    """It was a CancelledError, which `except HoldfastError` does not know."""
    begun, cancelled, opened = threading.Event(), threading.Event(), threading.Event()

    async def slow_to_end() -> None:
        try:
            await never(begun)
        finally:
            cancelled.set()
            opened.wait(30)

    with ThreadPoolExecutor() as threads:
        call = threads.submit(portal.call, slow_to_end())
        assert begun.wait(30)
        closing = threads.submit(portal.close)
        assert cancelled.wait(30)
        portal.open()
        opened.set()
        closing.result(30)
        with pytest.raises(ConfigurationError, match="closed and opened again"):
            call.result(30)
        portal.call(nothing())


def test_a_call_from_the_thread_of_the_portal_is_refused(portal: Portal) -> None:
    async def from_inside() -> None:
        portal.call(nothing())

    with pytest.raises(ConfigurationError, match="another thread"):
        portal.call(from_inside())


def test_a_close_from_the_thread_of_the_portal_leaves_it_open(portal: Portal) -> None:
    """Fault: the loop was stopped with all calls, and its connections were left open."""

    async def from_inside() -> None:
        portal.close()

    with pytest.raises(ConfigurationError, match="another thread"):
        portal.call(from_inside())
    portal.call(nothing())


def test_a_close_waits_for_one_that_is_under_way(portal: Portal) -> None:
    """Fault: the second one stopped the loop under the first, which raised."""
    begun, release, done = threading.Event(), threading.Event(), list[int]()

    async def last() -> None:
        begun.set()
        while not release.is_set():
            await asyncio.sleep(0.001)
        done.append(1)

    with ThreadPoolExecutor() as threads:
        first = threads.submit(portal.close, last)
        assert begun.wait(30)
        second = threads.submit(portal.close, nothing)
        release.set()
        for each in (first, second):
            each.result(30)
    assert done == [1]
    portal.close(last)


def test_nothing_waits_for_the_thread_when_the_interpreter_ends(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has stopped by then, like each daemon: a `__del__` that closes a client would hang."""
    with monkeypatch.context() as ending:
        ending.setattr(sys, "is_finalizing", lambda: True)
        with pytest.raises(ConfigurationError, match="not open"):
            portal.call(nothing())
        portal.close()
        ending.undo()
    portal.call(nothing())
