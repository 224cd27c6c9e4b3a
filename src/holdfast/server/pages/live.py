"""Keep open pages up to date: one stream a page, which sends the parts that have changed.

All who look at the same page share one look at the database. A follower is a number: the change
that it has seen last. So a slow one costs no memory, and holds up nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.server.access import Principal
from holdfast.server.problems import Problem, kind_of
from holdfast.server.site import Site

Look = Callable[[], Awaitable[Mapping[str, str]]]
"""Returns the parts of a page as they are now: HTML by the id of their element."""

_ALIVE_SECONDS: Final = 15.0
BYE: Final = "event: bye\ndata: \n\n"
GONE: Final = "event: gone\ndata: \n\n"  # what the page is about was deleted: do not ask again
_GONE: Final = (404, 410)
_MOST_TOGETHER: Final = 4  # streams of one browser, which has six connections to a host
_LATER: Final = "retry: 3000\n" + BYE  # milliseconds: other pages have their turn meanwhile
_BEGIN: Final = "retry: 1000\n\n"


class _Shared:
    """The parts of one page as they are now, for all who look at it."""

    def __init__(self, look: Look, seconds: float) -> None:
        self._look, self._seconds = look, seconds
        self.parts: dict[str, tuple[int, str]] = {}  # by id: the change that it is of, and HTML
        self.change = 0
        self.followers = 0
        self.failed = self.gone = False
        self.changed = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                # A part that is not there any more, such as "the replica is away", is emptied.
                found = dict.fromkeys(self.parts, "") | dict(await self._look())
                self.failed = self.gone = False
            except Exception as error:  # the database may be away: the next look may succeed
                self.gone = is_gone(error)
                self.failed = self.gone or isinstance(error, Problem)
                found = dict[str, str]()
            new = {
                name: html
                for name, html in found.items()
                if name not in self.parts or self.parts[name][1] != html
            }
            if new:
                self.change += 1
                self.parts |= {name: (self.change, html) for name, html in new.items()}
            if new or self.failed:
                self.changed.set()
                self.changed = asyncio.Event()
            await asyncio.sleep(self._seconds)


class Streams:
    """The streams of a server's pages."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._shared: dict[str, _Shared] = {}
        self._browsers: dict[str, list[asyncio.Event]] = {}

    async def follow(
        self, page: str, principal: Principal, look: Look, seconds: float, browser: str = ""
    ) -> AsyncGenerator[str]:
        """Yield messages of a stream: parts that changed, until the time of a stream is up.

        `page` names what is looked at; equal names share one look. Streams of one `browser` take
        turns if there are many of them.
        """
        with (
            self._site.streams.stream(principal),
            self._sharing(page, look, seconds) as shared,
            self._taking_turns(browser) as displaced,
        ):
            closing = asyncio.create_task(self._site.closing.wait())
            until = asyncio.get_running_loop().time() + self._site.stream_seconds
            seen = 0
            try:
                yield _BEGIN
                while not closing.done() and not shared.failed:
                    new = {k: v for k, (change, v) in shared.parts.items() if change > seen}
                    seen = shared.change
                    left = until - asyncio.get_running_loop().time()
                    if not self._site.access.still(principal):
                        break
                    if new:
                        yield message(new)
                    if left <= 0:
                        break
                    if displaced.is_set():
                        yield _LATER
                        return
                    if seen == shared.change and not await _any_of(
                        closing, min(left, _ALIVE_SECONDS), shared.changed, displaced
                    ):
                        yield ": alive\n\n"
                yield GONE if shared.gone else BYE
            finally:
                closing.cancel()

    @contextlib.contextmanager
    def _taking_turns(self, browser: str) -> Generator[asyncio.Event]:
        """Let a stream be one of its browser's; the oldest gives way if there are too many.

        A browser opens six HTTP/1.1 connections to a host. If streams had all of them, no other
        page would load.
        """
        displaced = asyncio.Event()
        if not browser:  # a program, or a proxy that tells who asks
            yield displaced
            return
        streams = self._browsers.setdefault(browser, [])
        streams.append(displaced)
        for each in streams[:-_MOST_TOGETHER]:
            each.set()
        try:
            yield displaced
        finally:
            streams.remove(displaced)
            if not streams and self._browsers.get(browser) is streams:
                del self._browsers[browser]

    @contextlib.contextmanager
    def _sharing(self, page: str, look: Look, seconds: float) -> Generator[_Shared]:
        shared = self._shared.get(page)
        if shared is None:
            shared = self._shared[page] = _Shared(look, seconds)
        shared.followers += 1
        try:
            yield shared
        finally:
            shared.followers -= 1
            if not shared.followers:
                shared.task.cancel()
                if self._shared.get(page) is shared:
                    del self._shared[page]


def is_gone(error: Exception) -> bool:
    """Return True if what a page is about does not exist, or does not exist any more."""
    if isinstance(error, Problem):
        return error.status in _GONE
    kind = kind_of(type(error)) if isinstance(error, HoldfastError) else None
    return kind is not None and kind.status in _GONE


async def _any_of(closing: asyncio.Task[bool], seconds: float, *events: asyncio.Event) -> bool:
    """Wait for one of these; return False if the time was up first."""
    waiting = [asyncio.create_task(each.wait()) for each in events]
    try:
        done, _ = await asyncio.wait(
            {*waiting, closing}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        return bool(done)
    finally:
        for each in waiting:
            each.cancel()


def message(parts: Mapping[str, str]) -> str:
    """Return a message that fills elements with new HTML; what is typed there stays."""
    html = "".join(
        f'<hx-partial hx-target="#{name}" hx-swap="innerMorph">{part}</hx-partial>'
        for name, part in parts.items()
    )
    return "".join(f"data: {line}\n" for line in html.splitlines()) + "\n"
