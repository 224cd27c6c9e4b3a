"""An archive: objects with many runs each, and beside each an index by which a run is found.

```
runs/2026/11/22/NAME.jsonl.gz    lines of runs, in blocks: each is a member of the gzip file
index/NAME.json.gz               what is in it, and in which block
```

NAME begins with the moment at which the object was written. The object is written first, then its
index: runs of an object without an index are still in the database.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import zlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from copy import copy
from datetime import datetime
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from holdfast.errors import ConfigurationError, ObjectsUnavailable
from holdfast.objects import Objects, check_objects_url, open_objects
from holdfast.retention.reading import ArchivedRun, RunHead, read_archived, read_head
from holdfast.types import Value
from holdfast.values.composing import compose
from holdfast.values.ids import uuid7
from holdfast.values.moments import to_datetime

T = TypeVar("T")

ARCHIVE_VARIABLE: Final = "HOLDFAST_ARCHIVE"
FORMAT: Final = 1
_MANIFEST: Final = "holdfast-archive.json"
_BLOCK: Final = 256 * 1024  # characters of lines; a run is read with its whole block
_LEVEL: Final = 3  # of compression: a higher one takes twice the time for a tenth less
_INDEXES: Final = 64  # that are kept in memory
_AT_ONCE: Final = 8  # indexes that are read at the same time
_DAMAGE: Final = (OSError, EOFError, ValueError, zlib.error, msgspec.DecodeError)
_KEYED: Final = "ff"  # the first byte of ids that keys make


class _Manifest(msgspec.Struct):
    format: int


class _Found(RunHead):
    """A run in an index, and the block that has its lines."""

    start: int = 0
    length: int = 0


class _Index(msgspec.Struct):
    format: int
    object: str
    runs: list[_Found]


class ArchiveEntry(Value, frozen=True, kw_only=True):
    """A run as a list of the archive shows it. `object` is where it stands."""

    run_id: UUID
    kind: str
    name: str
    key: str | None
    status: str
    created_at: datetime
    completed_at: datetime
    object: str


def archive_url(given: str | None) -> str | None:
    """Return where runs are archived: as given, else as $HOLDFAST_ARCHIVE says; None for nowhere.

    Raises ConfigurationError for a text that does not name a place for objects.
    """
    url = given or os.environ.get(ARCHIVE_VARIABLE, "").strip()
    return check_objects_url(url) if url else None


def open_archive(given: str | None) -> Archive | None:
    """Return the archive at a URL, else that of $HOLDFAST_ARCHIVE, None without both.

    Raises ConfigurationError for a text that names no place for objects.
    """
    url = archive_url(given)
    return None if url is None else Archive(url)


class Archive:
    """The runs of a database that were written to objects before they were deleted.

    All methods raise ObjectsUnavailable if the objects cannot be reached.
    """

    def __init__(self, url: str, objects: Objects | None = None) -> None:
        """Say where it is; nothing is read or written yet. Raises ConfigurationError."""
        self._objects = objects or open_objects(url)
        self.url = self._objects.url
        self._indexes: OrderedDict[str, _Index] = OrderedDict()
        self._sees: Callable[[str], bool] = lambda _: True

    def narrowed(self, sees: Callable[[str], bool]) -> Archive:
        """Return this archive as one without the runs of workflows that are not seen.

        `sees` is given full names. Of other runs no object is read: that takes time, and may fail.
        """
        other = copy(self)
        other._sees = sees
        return other

    async def check(self) -> None:
        """See that runs can be written here; make the archive if there is none yet.

        Raises ConfigurationError for an archive of a newer release.
        """
        found = await self._objects.get(_MANIFEST)
        if found is None:
            await self._objects.put(_MANIFEST, msgspec.json.encode(_Manifest(FORMAT)))
        elif _read(found, _Manifest, self.url).format > FORMAT:
            raise ConfigurationError(
                f"the archive {self.url} was written by a newer release of holdfast: upgrade this "
                "one"
            )

    async def write(self, made: ArchiveObject) -> set[UUID]:
        """Write an object and its index; return the ids of the runs that are safe here then."""
        data, index = await asyncio.to_thread(made.finish)
        written = {run.run_id for run in made.found}
        if written:
            await self._objects.put(made.name, data)
            await self._objects.put(made.index_name, index)
        return written

    async def find(self, run_ids: Collection[UUID]) -> dict[UUID, ArchivedRun]:
        """Return runs of the archive. Of a run that was archived twice, the copy that is newest.

        That is the one that ended last; of those that ended at one moment, the one written last.
        """
        found: dict[UUID, tuple[_Found, str]] = {}
        async for index in self._read_indexes(run_ids):
            for run in index.runs:
                if run.run_id not in run_ids or not self._sees(run.name):
                    continue
                other = found.get(run.run_id)
                if other is None or _age(*other) < _age(run, index.object):
                    found[run.run_id] = run, index.object
        return {run_id: await self._read_run(*place) for run_id, place in found.items()}

    async def entries(self, name: str | None = None) -> AsyncGenerator[ArchiveEntry]:
        """Yield the runs of the archive, those that were written last first; those of a workflow.

        A run that a crash let be written twice is yielded twice.
        """
        names = [each async for each in self._objects.names("index/")]
        for each in sorted((each for each in names if each.endswith(".json.gz")), reverse=True):
            index = await self._index(each)
            for run in reversed(index.runs):
                asked = name is None or name in (run.name, run.name.rpartition("/")[2])
                if asked and self._sees(run.name):
                    yield _entry(run, index.object)

    async def _read_indexes(self, run_ids: Collection[UUID]) -> AsyncGenerator[_Index]:
        """Yield the indexes that may have one of these runs."""
        names = [each async for each in self._objects.names("index/") if _may_have(each, run_ids)]
        for first in range(0, len(names), _AT_ONCE):
            for index in await asyncio.gather(*map(self._index, names[first : first + _AT_ONCE])):
                yield index

    async def _index(self, name: str) -> _Index:
        if (known := self._indexes.get(name)) is not None:
            self._indexes.move_to_end(name)
            return known
        data = await self._objects.get(name)
        if data is None:
            return _Index(FORMAT, "", [])  # deleted since the list was read
        index = _read(data, _Index, f"{self.url}/{name}", compressed=True)
        self._indexes[name] = index
        if len(self._indexes) > _INDEXES:
            self._indexes.popitem(last=False)
        return index

    async def _read_run(self, run: _Found, name: str) -> ArchivedRun:
        block = await self._objects.get(name, run.start, run.length)
        if block is None:
            raise ObjectsUnavailable(self.url, f"{name} is missing, although an index names it")
        try:
            lines = await asyncio.to_thread(_lines_of, block, run.run_id)
            return read_archived(lines, self.url)
        except _DAMAGE as error:
            raise ObjectsUnavailable(self.url, f"{name} is damaged: {error}") from error


class ArchiveObject:
    """An object that is being made, in memory: runs are added, then it is finished."""

    def __init__(self, now: int) -> None:
        moment = to_datetime(now)
        self._stamp = f"{moment:%Y%m%dT%H%M%S}-{uuid7().hex}"
        self.name = f"runs/{moment:%Y/%m/%d}/{self._stamp}.jsonl.gz"
        self.found: list[_Found] = []
        self._blocks: list[bytes] = []
        self._size = 0  # of the blocks
        self._lines: list[str] = []  # of the block that is being filled
        self._heads: list[RunHead] = []
        self._characters = 0

    @property
    def size(self) -> int:
        """How many bytes the object has so far, without the block that is being filled."""
        return self._size

    @property
    def index_name(self) -> str:
        """The name of the index, which says which ids it may have."""
        ids = [run.run_id.hex[:12] for run in self.found]
        ordered = [each for each in ids if not each.startswith(_KEYED)]
        first, last = min(ordered, default="0"), max(ordered, default="0")
        keyed = "k" if len(ordered) < len(ids) else "n"
        return f"index/{self._stamp}_{first}_{last}_{keyed}.json.gz"

    def add(self, runs: Iterable[Sequence[str]]) -> None:
        """Add runs, each as its lines."""
        for lines in runs:
            self._heads.append(read_head(lines[0]))
            # A line break is white space of the values' JSON: in strings it is escaped.
            self._lines += [line.replace("\n", " ") for line in lines]
            self._characters += sum(map(len, lines))
            if self._characters >= _BLOCK:
                self.end_block()

    def end_block(self) -> None:
        """Compress the block that is being filled."""
        if not self._heads:
            return
        text = "\n".join(self._lines) + "\n"
        block = gzip.compress(text.encode(), _LEVEL, mtime=0)
        for head in self._heads:
            fields = msgspec.structs.asdict(head)
            self.found.append(_Found(**fields, start=self._size, length=len(block)))
        self._blocks.append(block)
        self._size += len(block)
        self._lines, self._heads, self._characters = [], [], 0

    def finish(self) -> tuple[bytes, bytes]:
        """Return the object, and its index."""
        self.end_block()
        index = msgspec.json.encode(_Index(FORMAT, self.name, self.found))
        return b"".join(self._blocks), gzip.compress(index, _LEVEL, mtime=0)


def _may_have(index_name: str, run_ids: Collection[UUID]) -> bool:
    """Return False if the name of an index says that it has none of the runs."""
    parts = index_name.removeprefix("index/").partition(".")[0].split("_")
    if len(parts) != 4:
        return False
    _, first, last, keyed = parts
    for run_id in run_ids:
        digits = run_id.hex[:12]
        if (keyed == "k") if digits.startswith(_KEYED) else (first <= digits <= last):
            return True
    return False


def _lines_of(block: bytes, run_id: UUID) -> list[str]:
    """Return the lines of a run in a block. Raises ValueError if it has none."""
    wanted = f'"{run_id}"'
    lines = gzip.decompress(block).decode().split("\n")
    found: list[str] = []
    for line in lines:
        if line.startswith('{"run":{'):
            is_its = f'"run_id":{wanted}' in line[:80]
        else:
            is_its = line.startswith(f'{{"run":{wanted}')
        if is_its:
            found.append(line)
        elif found:
            break
    if not found:
        raise ValueError(f"it has no run {run_id}")
    return found


def _age(run: _Found, name: str) -> tuple[datetime, str]:
    """Return what sorts copies of one run, the newest last. Names begin with the moment."""
    return run.completed_at, name


def _entry(run: _Found, name: str) -> ArchiveEntry:
    return compose(ArchiveEntry, run, object=name)


def _read(data: bytes, kind: type[T], place: str, *, compressed: bool = False) -> T:
    """Decode a small object. Raises ObjectsUnavailable for one that is damaged."""
    try:
        return msgspec.json.decode(gzip.decompress(data) if compressed else data, type=kind)
    except _DAMAGE as error:
        raise ObjectsUnavailable(place, f"it is damaged: {error}") from error
