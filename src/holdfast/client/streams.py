"""Read the streams of a run: what its steps, activities and code have written, and write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final, Literal, TypeAlias, TypedDict
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.client.naming import RunRef
from holdfast.client.reading import store_of
from holdfast.client.session import Session
from holdfast.client.stream_chains import StreamChain, first_run
from holdfast.codec import Decode, check_open, decoder
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.store.port import stream_topic
from holdfast.types import (
    LOG_STREAM,
    Chunk,
    End,
    Restarted,
    Status,
    StreamInfo,
    StreamItem,
    StreamPage,
    StreamPart,
    StreamRead,
    Writer,
    WriterState,
)
from holdfast.values.names import check_stream_name
from holdfast.values.numbers import true_or_false, whole_number

MOST_ITEMS: Final = 10_000  # of a page

Attempts: TypeAlias = Literal["counted", "all"]

_AWAIT_SECONDS: Final = 60.0  # for which a stream's writers wake this client
_POLL_SECONDS: Final = (0.5, 5.0)  # between two looks without a wake-up: least, most
_WHOLE: Final = 2**31 - 1
_BEYOND: Final = 2**62  # an offset, where nothing is read but the fate of writers
_FATE_SECONDS: Final = 0.05  # the same, while the end of a stream depends on the end of a step


class StreamPlace(TypedDict, total=False):
    """Where reading a stream begins, and what is read of attempts that do not count."""

    after: int
    attempts: Attempts


class ItemOptions(StreamPlace, total=False):
    """`StreamOptions` with which no `Restarted` comes."""

    restarts: Literal[False]


class StreamOptions(StreamPlace, total=False):
    """What is read of a stream.

    - `after`: an offset; what comes after it is read. With that of the last item, a reader
      continues where it stopped; 0 is the beginning.
    - `attempts`: "all" reads what attempts that do not count have written, too.
    - `restarts`: yield a `Restarted` if some of what was read does not count any more.
    """

    restarts: bool


_split: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


async def follow_stream(
    session: Session, run: RunRef, name: str, kind: object, options: StreamOptions
) -> AsyncGenerator[StreamItem[Any] | Restarted]:
    """Yield the items of a stream as they are written, to its end; see `RunHandle.stream_items`."""
    check_stream_name(name)
    restarts = options.get("restarts", False)
    async with aclosing(follow_chain(session, run, name, kind, options)) as found:
        async for each in found:
            if isinstance(each, StreamItem) or (restarts and each is not None):
                yield each


async def follow_chain(
    session: Session, run: RunRef, name: str, kind: object, options: StreamOptions
) -> AsyncGenerator[StreamItem[Any] | Restarted | None]:
    """Yield the items of a stream and what restarts, and None each time that more is waited for."""
    async with aclosing(_read_chain(session, run, name, kind, options)) as chain:
        async for reading in chain:
            async with aclosing(reading.follow()) as found:
                async for each in found:
                    yield each


async def read_page(
    session: Session, run: RunRef, name: str, kind: object, limit: int, options: StreamOptions
) -> StreamPage[Any]:
    """Return what a stream has now; see `RunHandle.read_stream`."""
    if not 1 <= whole_number(limit, "a page of a stream", "limit", 0) <= MOST_ITEMS:
        raise InvalidInput(f"limit={limit}: a page has 1 to {MOST_ITEMS:,} values")
    check_stream_name(name)
    items, after = list[StreamItem[Any]](), options.get("after", 0)
    options = {**options, "restarts": False}  # a page has none
    async with aclosing(_read_chain(session, run, name, kind, options)) as chain:
        async for reading in chain:
            while not reading.is_over:
                found = [each for each in await reading.read() if isinstance(each, StreamItem)]
                items += found
                if len(items) > limit:
                    return StreamPage(items[:limit], items[limit - 1].offset, ended=False)
                if reading.has_all:
                    break
            if not reading.is_over:
                return StreamPage(items, max(after, reading.after), ended=False)
            after = max(after, reading.after)
    return StreamPage(items, after, ended=True)


async def list_streams(session: Session, run: RunRef) -> list[StreamInfo]:
    """Return the streams of a run, by name. Raises RunNotFound."""
    run_id = await session.newest_of(run)
    found = await session.store.list_streams(run_id)
    if not found:
        found = await (await store_of(session, run_id)).list_streams(run_id)
    return [each for each in found if each.name != LOG_STREAM]


async def _read_chain(
    session: Session, run: RunRef, name: str, kind: object, options: StreamOptions
) -> AsyncGenerator[Reading]:
    """Yield a reading for a run, and for each run that follows it, unless that is the end."""
    after, attempts = options.get("after", 0), options.get("attempts", "counted")
    if unknown := options.keys() - StreamOptions.__optional_keys__:
        raise ConfigurationError(f"a stream has no option {', '.join(sorted(unknown))}")
    if attempts not in ("counted", "all"):
        raise ConfigurationError(f"attempts={attempts!r}: read those that are counted, or all")
    if whole_number(after, "a stream", "after", -1) < 0:
        raise InvalidInput(f"after={after}: the first value of a stream has the offset 1")
    decode = decoder(object if kind is None else kind)
    restarts = true_or_false(options.get("restarts", False), "restarts")
    chain = StreamChain(session, name, after if restarts else 0, by_key=isinstance(run, tuple))
    next_id: UUID | None = await first_run(session, run, name, after, restarts=restarts)
    restarted: list[Restarted] = []
    while next_id is not None:
        reading = Reading(
            session,
            next_id,
            name,
            after,
            decode,
            everything=attempts == "all",
            restarts=restarts,
            chain=chain,
        )
        reading.restarted = restarted
        yield reading
        if reading.is_closed:
            return
        next_id, restarted = await chain.leave(reading)


async def stream_values(
    session: Session, run: RunRef, name: str, kind: object, after: int
) -> AsyncGenerator[object]:
    """Yield the values of a stream; see `RunHandle.stream`."""
    items = follow_stream(session, run, name, kind, {"after": after})
    async with aclosing(items) as found:
        async for each in found:
            if isinstance(each, StreamItem):
                yield each.value


class Reading:
    """Reads one stream of one run, part by part."""

    def __init__(
        self,
        session: Session,
        run_id: UUID,
        name: str,
        after: int,
        decode: Decode,
        *,
        everything: bool,
        restarts: bool = False,
        chain: StreamChain | None = None,
    ) -> None:
        """`restarts` says that the caller wants to know what was before `after` and is dead.

        `chain` knows what of the stream does not count in the runs that follow.
        """
        self._session, self.run_id, self._name = session, run_id, name
        self._chain = chain
        self._kept: list[frozenset[str]] | None = None  # calls, by copies of the run once it ended
        self.restarted: list[Restarted] = []  # what this run makes again, to be told first
        self.shown = set[str]()  # calls whose values were read, and count in this run
        self.after, self._decode, self._everything = after, decode, everything
        self._resumed = restarts and after > 0  # looking at all who wrote before takes time
        self._open: dict[Writer, int] = {}  # of which something was found: log's length then
        self.base = self.last_offset = 0  # of the run that continued as this one, and of this one
        self._closer: Writer | None = None  # the close is next, and may not count
        self.is_closed = self._has_ended = False
        self.status: Status | None = None  # of the run
        self.has_all = False  # what there was when it read last
        self._woken = asyncio.Event()
        self._awaited_until = 0.0

    @property
    def is_over(self) -> bool:
        """True if nothing follows in this run."""
        return self.is_closed or (self._has_ended and self.has_all)

    async def follow(self) -> AsyncGenerator[StreamItem[Any] | Restarted | None]:
        """Yield what there is, and what comes, until the stream ends. Raises RunNotFound.

        None says that there is no more now.
        """
        interval = _POLL_SECONDS[0]
        end: asyncio.Future[End] | None = None
        async with AsyncExitStack() as stack:
            while not self.is_over:
                self._woken.clear()
                found = await self.read()
                for each in found:
                    yield each
                if self.is_over or not self.has_all:
                    continue
                yield None
                interval = _POLL_SECONDS[0] if found else min(interval * 1.5, _POLL_SECONDS[1])
                if end is None:
                    end = await self._listen(stack)
                elif not await self._awaits_wakeups():
                    await self._sleep(end, _FATE_SECONDS if self._closer else interval)

    async def read(self) -> list[StreamItem[Any] | Restarted]:
        """Return what is new. Raises RunNotFound, and InvalidInput for what is not its offset."""
        closer, after = self._closer, self.after if self._closer is None else _BEYOND
        opened = tuple(self._open.items())
        read = StreamRead(self.run_id, self._name, after, self._resumed, opened)
        part = await self.part(read)
        self._resumed, self.status = False, part.status
        if self._chain and self._kept is None and part.status not in (None, "running"):
            self._kept = await self._chain.kept_after(self.run_id, part.status)
        if self.after > part.last_offset and part.status != "continued" and not self._kept:
            raise InvalidInput(
                f"after={self.after}: stream {self._name!r} of run {self.run_id} has "
                f"{part.last_offset} values; the offset is that of another stream"
            )
        self._has_ended = part.status != "running"
        found = [*self.restarted, *self._take(part)]
        self.restarted = []
        is_empty = closer is None and not part.chunks
        self.has_all = self._closer is not None or is_empty or part.last_offset <= self.after
        return found

    async def part(self, read: StreamRead) -> StreamPart:
        """Return a part of the stream; of an archived run all: its object is read whole anyway.

        Raises RunNotFound.
        """
        found = await self._session.stream_reads.submit(read)
        if found.status is not None:
            return found
        store = await store_of(self._session, self.run_id)
        [part] = await store.read_streams([read], limit=_WHOLE, most_bytes=_WHOLE)
        return part

    async def _listen(self, stack: AsyncExitStack) -> asyncio.Future[End]:
        """Hear of what is written from now on; return what is done once the run has ended."""
        session = self._session
        end = await stack.enter_async_context(session.ends.expect(self.run_id))
        session.ends.watch(self.run_id)
        stop = await session.store.listen(stream_topic(self.run_id), self._hear)
        stack.push_async_callback(stop)
        await self._awaits_wakeups()
        return end

    async def _awaits_wakeups(self) -> bool:
        """Ask for wake-ups, unless an earlier request still holds; return True if it was asked.

        What was written before is to be read after this.
        """
        now = asyncio.get_running_loop().time()
        if now < self._awaited_until:
            return False
        await self._session.store.await_streams([(self.run_id, self._name)], _AWAIT_SECONDS)
        self._awaited_until = now + _AWAIT_SECONDS / 2
        return True

    def _take(self, part: StreamPart) -> Iterator[StreamItem[Any] | Restarted]:
        """Yield what is new in a part, the restarts first."""
        self.base, self.last_offset = part.base, part.last_offset
        for fate in part.fates if self.after <= part.last_offset else ():  # else all were told
            if fate.state == "dead":
                yield self._forget(fate.writer, fate.by_attempt)
            elif fate.state == "final":
                self._open.pop(fate.writer, None)
            else:
                self._open[fate.writer] = part.log_length
            if fate.writer == self._closer:
                self._wait_for_close(fate.writer, self._judge(fate.writer, fate.state))
        for each in part.chunks:
            chunk = replace(each, state=self._judge(each.writer, each.state))
            if chunk.closes and chunk.state != "dead" and self._keeps(chunk.writer.key):
                self._open.setdefault(chunk.writer, part.log_length)
                self._wait_for_close(chunk.writer, chunk.state)
                return
            yield from self._take_chunk(chunk, part.log_length)

    def _take_chunk(self, chunk: Chunk, log_length: int) -> Iterator[StreamItem[Any] | Restarted]:
        writer, after = chunk.writer, self.after
        self.after = chunk.last_offset
        if chunk.state == "dead" and not self._everything:
            return
        if chunk.state != "dead":
            for older in [each for each in self._open if each.key == writer.key and each != writer]:
                yield self._forget(older, writer.attempt)
        if not chunk.closes:
            check_open((chunk.items,))
            first = chunk.last_offset - chunk.count + 1
            for offset, text in enumerate(_split(chunk.items), first):
                if offset > after:
                    yield StreamItem(offset, self._read(offset, text), writer.key, writer.attempt)
        if chunk.state != "dead":
            self.shown.add(writer.key)
        if chunk.state == "open":
            self._open.setdefault(writer, log_length)
        elif chunk.state == "final":
            self._open.pop(writer, None)

    def _judge(self, writer: Writer, state: WriterState) -> WriterState:
        """Return what became of a writer, also in the runs that retry this one."""
        return state if not writer.key or self._keeps(writer.key) else "dead"

    def _keeps(self, key: str) -> bool:
        """Return True if all runs that retry this one keep a call, or a close of the code: ""."""
        return all(key in kept for kept in self._kept or ())

    def _wait_for_close(self, writer: Writer, state: WriterState) -> None:
        """Learn if the close that is next counts.

        It is not passed: who continues from here must find it. What is after it is given to nobody,
        unless another attempt takes the place of the one that has closed.
        """
        self.is_closed = state == "final" or (state == "open" and self._has_ended)
        self._closer = writer if state == "open" and not self._has_ended else None

    def _read(self, offset: int, text: msgspec.Raw) -> object:
        try:
            return self._decode(text)
        except InvalidInput as error:
            raise InvalidInput(
                f"the value at offset {offset} of stream {self._name!r} of run {self.run_id}: "
                f"{error}"
            ) from None

    def _forget(self, writer: Writer, by_attempt: int | None) -> Restarted:
        self._open.pop(writer, None)
        return Restarted(writer.key, by_attempt or writer.attempt + 1, self.base)

    def _hear(self, payload: str) -> None:
        if payload in ("", self._name):
            self._woken.set()

    async def _sleep(self, end: asyncio.Future[End], seconds: float) -> None:
        """Wait for a wake-up, or for the end of the run."""
        woken = asyncio.create_task(self._woken.wait())
        try:
            awaited: set[asyncio.Future[Any]] = {woken, end}
            await asyncio.wait(awaited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
