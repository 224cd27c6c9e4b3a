"""Payloads as objects: put before what refers to them is written, fetched and checked when read."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from holdfast.codec import Reference
from holdfast.errors import HoldfastError, ObjectsUnavailable
from holdfast.objects import Objects
from holdfast.payloads.large import LargePayloads
from holdfast.payloads.walking import references_in, with_contents
from holdfast.store.port import Store
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.payloads")

T = TypeVar("T")

_NOTED_SECONDS: Final = 600.0  # so long an owner counts as noted; the database waits for an hour
_AT_ONCE: Final = 16  # calls to the object store
_CALL_SECONDS: Final = 30.0
_PUT_SECONDS: Final = 10.0  # after which a client's call fails
_READ_SECONDS: Final = 10.0  # without any object, after which what is not read is left
_PAUSES: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)  # between the tries of a put
_UNASKED_SECONDS: Final = 60.0  # after which a put that fails is given up
_TOLD_SECONDS: Final = 20.0  # between two notes of the same failure
_REFUSED_SECONDS: Final = 0.1  # before a refused owner is noted again
_CACHE_BYTES: Final = 64 * 1024 * 1024
_KNOWN: Final = 1_000  # puts that are remembered
_AS_STORED: Final = frozenset({"export_runs"})  # the archive fetches run by run


class Put:
    """An object that is put, or was."""

    __slots__ = ("asked_at", "error", "reference", "task", "text", "told_at")

    def __init__(self, reference: Reference, text: str) -> None:
        self.reference, self.asked_at = reference, _time()
        self.text: str | None = text  # until it is put
        self.task: asyncio.Task[None] | None = None
        self.error: ObjectsUnavailable | None = None
        self.told_at: float | None = None  # when the database was told of a failure

    @property
    def is_done(self) -> bool:
        """True if the object is there."""
        return self.text is None


class Shelf:
    """The objects of one store's payloads. It belongs to one event loop, as its store does."""

    def __init__(self, store: Store, large: LargePayloads) -> None:
        self._store, self.url, self.above = store, large.url, large.above
        self._opened: dict[str, Objects] = {}
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self._noted: OrderedDict[UUID, float] = OrderedDict()
        self._puts: OrderedDict[tuple[UUID, bytes], Put] = OrderedDict()
        self._cache: OrderedDict[str, str] = OrderedDict()
        self._cached = 0  # characters
        self._fetches: dict[str, asyncio.Task[str]] = {}
        self._fetched_count = 0

    # Writing

    def find(self, owner: UUID, text: str) -> Put | None:
        """Return the put of a payload, if a run has the same one since a short while."""
        put = self._puts.get((owner, _digest(text)))
        is_new = put is not None and _time() - put.asked_at < _NOTED_SECONDS
        return put if is_new else None

    def add(self, owner: UUID, text: str, sealed: str) -> Put:
        """Return a new put of a payload, which is stored as `sealed`."""
        data = sealed.encode()
        reference = Reference(self.url, owner, hashlib.sha256(data).hexdigest(), len(data))
        put = self._puts[owner, _digest(text)] = Put(reference, sealed)
        while len(self._puts) > _KNOWN and _is_over(next(iter(self._puts.values()))):
            self._puts.popitem(last=False)
        return put

    async def begin(self, puts: Sequence[tuple[Put, UUID | None]], seconds: float) -> set[Put]:
        """Note the owners and put the objects; return those that are not there after `seconds`.

        With each put goes the run that refers to it, if it is not the owner. What is not there yet
        is tried again for as long as a caller asks for it. Nothing is put for a run while the
        objects of a deleted run with its id are still being deleted.
        """
        asked = {put for put, _ in puts}
        try:
            refused = await self._note({(put.reference.owner, user) for put, user in puts}, seconds)
        except BaseException:
            self._forget({put for put in asked if put.task is None})
            raise
        too_early = {put for put in asked if put.reference.owner in refused}
        self._forget({put for put in too_early if put.task is not None})  # deleted, too
        for put in asked:
            put.asked_at = _time()
            if put not in too_early and not put.is_done and (put.task is None or put.task.done()):
                put.task = asyncio.create_task(self._put(put))
        if tasks := [
            put.task for put in asked - too_early if put.task is not None and not put.is_done
        ]:
            await asyncio.wait(tasks, timeout=seconds)
        for put in too_early:
            reason = f"objects of an earlier run {put.reference.owner} are being deleted"
            put.error = ObjectsUnavailable(self.url, reason)
            await self._tell(put, str(put.error))
        return too_early | {put for put in asked if not put.is_done}

    async def put(self, puts: Sequence[tuple[Put, UUID | None]]) -> None:
        """Put objects. Raises ObjectsUnavailable if one is not there after a while."""
        left = await self.begin(puts, _PUT_SECONDS)
        for put in left:
            if put.task is not None:
                put.task.cancel()
        self._forget(left)
        for put in left:
            raise put.error or ObjectsUnavailable(
                self.url, f"a payload of {put.reference.bytes:,} bytes could not be put in time"
            )

    def _forget(self, puts: set[Put]) -> None:
        """Drop puts that nobody waits for, with their payloads."""
        for key in [key for key, put in self._puts.items() if put in puts]:
            del self._puts[key]

    async def _note(self, pairs: Iterable[tuple[UUID, UUID | None]], seconds: float) -> set[UUID]:
        """Say in the database that runs have objects, and which other runs use them.

        Users are noted each time: one may be a new run of the key of a deleted one, and what that
        one used is forgotten. Return the owners whose id a deleted run had, if its objects are
        still being deleted after `seconds`.
        """
        now = _time()
        left = [
            (owner, user)
            for owner, user in pairs
            if user is not None or now - self._noted.get(owner, -1e9) > _NOTED_SECONDS
        ]
        refused = set[UUID]()
        while left:
            owners, users = [owner for owner, _ in left], [user for _, user in left]
            refused = set(await self._store.own_payloads(self.url, owners, users))
            for owner in owners:
                if owner not in refused:
                    self._noted[owner] = now
                    self._noted.move_to_end(owner)
            left = [pair for pair in left if pair[0] in refused]
            if left and _time() - now > seconds:
                break
            if left:
                await asyncio.sleep(_REFUSED_SECONDS)
        while len(self._noted) > _KNOWN:
            self._noted.popitem(last=False)
        return refused

    async def _put(self, put: Put) -> None:
        """Put an object; try again until it is there, or nobody asks any more."""
        text, reference = put.text, put.reference
        assert text is not None, "it is not there yet"
        tries = 0
        while True:
            try:
                async with self._limit, asyncio.timeout(_CALL_SECONDS):
                    await self._objects(self.url).put(reference.name, text.encode())
            except (ObjectsUnavailable, TimeoutError) as error:
                put.error = _unavailable(self.url, error)
                if _time() - put.asked_at > _UNASKED_SECONDS:
                    self._forget({put})
                    return
                await self._tell(put, str(put.error))
                logger.warning(
                    "a payload of run %s (%d bytes) cannot be stored, and is tried again; what "
                    "refers to it waits: %s",
                    reference.owner,
                    reference.bytes,
                    put.error,
                )
                await asyncio.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
                tries += 1
            else:
                self._keep(reference, text)
                put.text = put.error = None
                if put.told_at is not None:
                    await self._tell(put, None)
                return

    async def _tell(self, put: Put, error: str | None) -> None:
        """Say in the database that an object cannot be put now, or that it is there at last."""
        now = _time()
        if error is not None and put.told_at is not None and now - put.told_at < _TOLD_SECONDS:
            return
        put.told_at = now
        try:
            await self._store.note_put(self.url, put.reference.owner, error)
        except HoldfastError as failure:  # only explanations lack it
            logger.debug("what became of a put could not be noted: %s", failure)

    # Reading

    async def resolved(self, answer: T) -> T:
        """Return an answer of the store with the contents of objects in place of references.

        A reference to an object that cannot be read stays, and says why: its readers raise
        PayloadLocked.
        """
        references = references_in(answer)
        if not references:
            return answer
        contents = dict(zip(references, await self._read_all(references), strict=True))
        return with_contents(answer, contents)

    async def begin_reading(self, values: Sequence[T], seconds: float) -> list[T]:
        """Begin to read what values refer to; return those whose objects are not read in time."""
        reads = [[self._fetch(each) for each in references_in(value)] for value in values]
        if asked := {task for some in reads for task in some}:
            await asyncio.wait(asked, timeout=seconds)
        return [
            value
            for value, some in zip(values, reads, strict=True)
            if not all(task.done() for task in some)
        ]

    async def _read_all(self, references: Sequence[Reference]) -> list[str]:
        """Return the contents; wait for as long as objects arrive, also for other readers."""
        tasks = [self._fetch(reference) for reference in references]
        left, before = set(tasks), -1
        while left and before < self._fetched_count:
            before = self._fetched_count
            _, left = await asyncio.wait(left, timeout=_READ_SECONDS)
        return [
            _outcome(task, reference) for task, reference in zip(tasks, references, strict=True)
        ]

    def _fetch(self, reference: Reference) -> asyncio.Task[str]:
        """Return the task that reads an object; calls at the same time share one."""
        task = self._fetches.get(reference.place)
        if task is None:
            task = self._fetches[reference.place] = asyncio.create_task(self._read(reference))
            task.add_done_callback(lambda done: self._fetched(reference.place, done))
        return task

    def _fetched(self, place: str, task: asyncio.Task[str]) -> None:
        """Let the next reader read again; drop an error that came too late for all readers."""
        del self._fetches[place]
        if not task.cancelled():
            task.exception()

    async def _read(self, reference: Reference) -> str:
        known = self._cache.get(reference.place)
        if known is None:
            async with self._limit, asyncio.timeout(_CALL_SECONDS):
                known = await read_object(self._objects(reference.url), reference)
            self._fetched_count += 1
            self._keep(reference, known)
        else:
            self._cache.move_to_end(reference.place)
        return known

    def _keep(self, reference: Reference, text: str) -> None:
        """Keep a payload for the next reader, and drop those that were not read for long."""
        if reference.place in self._cache:
            return
        self._cache[reference.place] = text
        self._cached += len(text)
        while self._cached > _CACHE_BYTES:
            _, dropped = self._cache.popitem(last=False)
            self._cached -= len(dropped)

    def _objects(self, url: str) -> Objects:
        objects = self._opened.get(url)
        if objects is None:
            objects = self._opened[url] = self._store.objects_at(url)
        return objects


async def read_object(objects: Objects, reference: Reference) -> str:
    """Return the payload that an object is. Raises ObjectsUnavailable, also for another content."""
    data = await objects.get(reference.name)
    if data is None:
        raise ObjectsUnavailable(objects.url, f"there is no object {reference.name}")
    if hashlib.sha256(data).hexdigest() != reference.digest:
        raise ObjectsUnavailable(objects.url, f"the object {reference.name} was changed")
    return data.decode()


def _is_over(put: Put) -> bool:
    """Return True if a put is done, or no caller has asked for it for long."""
    return put.is_done or _time() - put.asked_at > _NOTED_SECONDS


def _outcome(task: asyncio.Task[str], reference: Reference) -> str:
    """Return what was read, or the reference with the reason why it could not be."""
    if not task.done():
        return reference.as_json("no answer yet")
    error = task.exception()
    if error is None:
        return task.result()
    if not isinstance(error, HoldfastError | TimeoutError):
        raise error
    return reference.as_json(str(error) or "no answer in time")


def _unavailable(url: str, error: ObjectsUnavailable | TimeoutError) -> ObjectsUnavailable:
    if isinstance(error, ObjectsUnavailable):
        return error
    return ObjectsUnavailable(url, "no answer in time")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _time() -> float:
    return asyncio.get_running_loop().time()


class FetchingStore:
    """Passes every call on to a store, and fetches what its answer refers to."""

    def __init__(self, store: Store, shelf: Shelf) -> None:
        self._store, self._shelf = store, shelf

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a method of the store that fetches."""
            method = getattr(self._store, name)
            if name in _AS_STORED or not inspect.iscoroutinefunction(method):
                return method

            async def fetching(*arguments: Any, **options: Any) -> Any:
                return await self._shelf.resolved(await method(*arguments, **options))

            setattr(self, name, fetching)
            return fetching
