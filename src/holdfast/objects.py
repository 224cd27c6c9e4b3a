"""Objects in a folder or in a store such as S3: written whole, read whole or in ranges.

A folder needs nothing else; `s3://`, `gs://` and `az://` need the extra `holdfast[s3]`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from holdfast.errors import ConfigurationError, ObjectsUnavailable
from holdfast.values.numbers import is_a

if TYPE_CHECKING:
    from obstore.store import ObjectStore

REMOTE: Final = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_PARTIAL: Final = ".partial-"  # of a file that is being written
_LEFT_SECONDS: Final = 86_400.0  # older partial files have no writer any more


class Objects(Protocol):
    """Named objects of bytes. An object is there whole or not at all, and is never changed.

    All methods raise ObjectsUnavailable if the store does not answer or refuses the call.
    """

    @property
    def url(self) -> str:
        """Where the objects are."""
        ...

    async def put(self, name: str, data: bytes) -> None:
        """Write an object. When it returns, the object survives a crash."""
        ...

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return an object or a range of it, None if there is no such object."""
        ...

    def names(self, prefix: str) -> AsyncGenerator[str]:
        """Yield the names that begin with `prefix`, which ends with a slash, in order.

        In a folder also those of partial files older than a day: their writers were killed.
        """
        ...

    async def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        ...


def open_objects(url: str) -> Objects:
    """Return the objects at `file:///folder` or `s3://bucket/prefix`; it connects when it is used.

    Raises ConfigurationError for another URL, and if the extra that it needs is not installed.
    """
    url = check_objects_url(url)
    scheme = urlsplit(url).scheme
    if scheme == "file":
        return _Folder(url, Path(unquote(urlsplit(url).path)))
    return _Remote(url, _connect(url))


def check_objects_url(url: str) -> str:
    """Return a URL of a place for objects, without a slash at its end.

    Raises ConfigurationError for a URL that names none.
    """
    parts = urlsplit(is_a(str, url, "the URL of a place for objects"))
    if parts.scheme == "file":
        if parts.netloc or len(parts.path) < 2:
            raise ConfigurationError(f"{url!r} names no folder: write file:///path/of/the/folder")
    elif parts.scheme not in REMOTE or not parts.netloc:
        raise ConfigurationError(
            f"{url!r} does not name a place for objects: write s3://bucket/prefix or file:///folder"
        )
    if parts.query or parts.fragment or parts.username or parts.password:
        raise ConfigurationError(
            f"the place for objects at {parts.scheme}://{parts.hostname or ''} has more than a "
            "bucket and a prefix: credentials come from the environment, as AWS_ACCESS_KEY_ID"
        )
    return url.rstrip("/")


class _Folder:
    """Objects as files of a folder, which is made when the first one is written."""

    def __init__(self, url: str, root: Path) -> None:
        self.url, self._root = url, root

    async def put(self, name: str, data: bytes) -> None:
        with _unavailable(self.url):
            await asyncio.to_thread(self._write, self._root / name, data)

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        with _unavailable(self.url):
            return await asyncio.to_thread(self._read, self._root / name, start, length)

    async def names(self, prefix: str) -> AsyncGenerator[str]:
        with _unavailable(self.url):
            names = await asyncio.to_thread(self._list, prefix)
        for name in names:
            yield name

    async def delete(self, name: str) -> None:
        with _unavailable(self.url):
            await asyncio.to_thread(self._unlink, self._root / name)

    @staticmethod
    def _unlink(path: Path) -> None:
        """Delete a file, and its folder if that was the last one."""
        path.unlink(missing_ok=True)
        with suppress(OSError):
            path.parent.rmdir()

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file under another name, to the disk, and give it its name."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{_PARTIAL}{uuid4().hex}")
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        for folder in (path.parent, *path.parent.parents):  # new folders are entries as well
            _sync_folder(folder)
            if folder == self._root:
                break

    @staticmethod
    def _read(path: Path, start: int, length: int | None) -> bytes | None:
        try:
            with path.open("rb") as file:
                file.seek(start)
                return file.read(-1 if length is None else length)
        except FileNotFoundError:
            return None

    def _list(self, prefix: str) -> list[str]:
        return sorted(
            path.relative_to(self._root).as_posix()
            for path in (self._root / prefix).rglob("*")
            if path.is_file() and not _is_being_written(path)
        )


def _is_being_written(path: Path) -> bool:
    if not path.name.startswith(_PARTIAL):
        return False
    with suppress(FileNotFoundError):  # it has its name now
        return time.time() - path.stat().st_mtime < _LEFT_SECONDS
    return True


class MemoryObjects:
    """Objects in memory, for stores in memory."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._objects: dict[str, bytes] = {}

    async def put(self, name: str, data: bytes) -> None:
        """Keep an object."""
        self._objects[name] = data

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return an object or a range of it, None if there is no such object."""
        found = self._objects.get(name)
        end = None if length is None else start + length
        return None if found is None else found[start:end]

    async def names(self, prefix: str) -> AsyncGenerator[str]:
        """Yield the names that begin with `prefix`, in order."""
        for name in sorted(self._objects):
            if name.startswith(prefix):
                yield name

    async def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        self._objects.pop(name, None)


class _Remote:
    """Objects in a store that obstore can reach: S3 and what speaks like it, GCS, Azure."""

    def __init__(self, url: str, store: ObjectStore) -> None:
        self.url, self._store = url, store

    async def put(self, name: str, data: bytes) -> None:
        import obstore

        with _unavailable(self.url):
            await obstore.put_async(self._store, name, data)

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        import obstore

        with _unavailable(self.url):
            try:
                if length is not None:
                    found = await obstore.get_range_async(
                        self._store, name, start=start, length=length
                    )
                    return bytes(found)
                whole = await obstore.get_async(self._store, name)
                return bytes(await whole.bytes_async())[start:]
            except FileNotFoundError:
                return None

    async def names(self, prefix: str) -> AsyncGenerator[str]:
        import obstore

        names: list[str] = []
        with _unavailable(self.url):
            stream = obstore.list(  # pyright: ignore[reportUnknownMemberType] - its overloads
                self._store, prefix
            )
            async for batch in stream:
                names += [each["path"] for each in batch]
        for name in sorted(names):
            yield name

    async def delete(self, name: str) -> None:
        import obstore

        with _unavailable(self.url):
            await obstore.delete_async(self._store, name)


def _connect(url: str) -> ObjectStore:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise ConfigurationError(
            f"{url} needs the extra for object stores: pip install 'holdfast[s3]'"
        ) from None
    try:
        return from_url(url)
    except (BaseError, ValueError) as error:
        raise ConfigurationError(f"{url} cannot be used: {_first_line(error)}") from error


def _sync_folder(folder: Path) -> None:
    """Write the entries of a folder to the disk, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _unavailable(url: str) -> Generator[None]:
    """Raise ObjectsUnavailable for all that a store may fail with."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ObjectsUnavailable(url, _first_line(error)) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "obstore":
            raise
        raise ObjectsUnavailable(url, _first_line(error)) from error


def _first_line(error: BaseException) -> str:
    """Return an error in one line: those of obstore add pages for its developers."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
