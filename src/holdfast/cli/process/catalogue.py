"""What the code of an app says of its workflows and runs, read in other processes: it changes."""

from __future__ import annotations

import asyncio
import linecache
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from holdfast.cli.settings import Settings
from holdfast.runtime.loop.user_code import split_line
from holdfast.server.catalogue import CodeLine, Entry, Replayed, ReplayedEntry, entries_of
from holdfast.values.names import split_name

logger = logging.getLogger("holdfast.dev")

_PATIENCE_SECONDS: Final = 30.0
_MOST_REPLAYED: Final = 50  # logs whose replay is kept


class _Line(msgspec.Struct):
    """What `holdfast replay --json` writes of an entry."""

    index: int
    type: str
    key: str | None
    lines: tuple[str, ...]


class _Error(msgspec.Struct):
    message: str


class _Failure(msgspec.Struct):
    """What a command with --json writes if it fails."""

    error: _Error


class ChangingCatalogue:
    """Reads an app's code in a process of its own, and again after it has changed."""

    replays = True

    def __init__(self, reference: str, settings: Settings) -> None:
        self._reference, self._settings = reference, settings
        self._entries: dict[str, Entry] | None = None
        self._replayed: dict[tuple[UUID, int], Replayed] = {}
        self._lock = asyncio.Lock()

    async def find(self, name: str) -> Entry | None:
        """Return what the code says of a workflow; None if it does not have it now."""
        async with self._lock:
            if self._entries is None:
                self._entries = await self._read()
            entries = self._entries
        if "/" not in name:  # the code is that of one app
            entries = {split_name(full)[1]: entry for full, entry in entries.items()}
        return entries.get(name)

    async def noticing(self, changes: AsyncIterator[list[Path]]) -> AsyncIterator[list[Path]]:
        """Yield changes of files, and forget what was read before them."""
        async for paths in changes:
            self._entries = None
            self._replayed.clear()
            linecache.clearcache()
            yield paths

    async def replay(self, run_id: UUID, length: int) -> Replayed:
        """Feed the log of a run to the code; see `Catalogue.replay`. One at a time."""
        async with self._lock:
            if (run_id, length) not in self._replayed:
                while len(self._replayed) >= _MOST_REPLAYED:
                    self._replayed.pop(next(iter(self._replayed)))
                self._replayed[run_id, length] = await self._replay(run_id)
            return self._replayed[run_id, length]

    async def _replay(self, run_id: UUID) -> Replayed:
        arguments = (*self._settings.arguments(), "--json", "replay", str(run_id), self._reference)
        try:
            output, errors = await self._run("holdfast", *arguments)
        except TimeoutError:
            return Replayed((), f"the replay took longer than {_PATIENCE_SECONDS:g} s")
        entries: list[ReplayedEntry] = []
        for text in output.splitlines():
            with suppress(msgspec.DecodeError):  # what the code writes itself
                line = msgspec.json.decode(text, type=_Line)
                lines = tuple(map(_read_line, line.lines))
                entries.append(ReplayedEntry(line.index, line.type, line.key, lines))
        return Replayed(tuple(entries), _problem(errors))

    async def _read(self) -> dict[str, Entry]:
        try:
            output, _ = await self._run(__name__, self._reference)
            return msgspec.json.decode(output.splitlines()[-1], type=dict[str, Entry])
        except (TimeoutError, IndexError, msgspec.DecodeError):
            return {}  # the worker has said why

    async def _run(self, module: str, *arguments: str) -> tuple[bytes, bytes]:
        """Return what a module writes in a process of its own. Raises TimeoutError."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            env={**os.environ, **self._settings.environment()},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def _read_line(place: str) -> CodeLine:
    file, number = split_line(place)
    return CodeLine(place, linecache.getline(file, number).strip())


def _problem(errors: bytes) -> str:
    """Return the error that a command with --json has written; empty without one."""
    for text in reversed(errors.splitlines()):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text, type=_Failure).error.message
    return ""


def main() -> None:
    """Write what an app's code says as one line of JSON."""
    from holdfast.cli.process.loading import AppReference

    app = AppReference.parse(sys.argv[1]).load()
    sys.stdout.write("\n" + msgspec.json.encode(entries_of(app)).decode() + "\n")


if __name__ == "__main__":
    main()
