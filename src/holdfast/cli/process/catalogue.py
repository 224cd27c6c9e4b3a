"""What the code of an app says of its workflows and runs, read in other processes: it changes."""

from __future__ import annotations

import asyncio
import linecache
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from holdfast.cli.settings import Settings
from holdfast.runtime.loop.user_code import split_line
from holdfast.server.catalogue import Entry, Replayed, ReplayedEntry, entries_of
from holdfast.values.loggers import get_logger
from holdfast.values.names import split_name

logger = get_logger("holdfast.dev")

_PATIENCE_SECONDS: Final = 30.0
_MOST_REPLAYED: Final = 50  # logs whose replay is kept


@dataclass(slots=True)
class _Known:
    """What was read of the code as it is now: another one takes its place when that changes."""

    entries: dict[str, Entry] | None = None
    replayed: dict[tuple[UUID, int], Replayed] = field(
        default_factory=dict[tuple[UUID, int], Replayed]
    )


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
        self._known = _Known()
        self._reads, self._replays = asyncio.Lock(), asyncio.Lock()

    async def find(self, name: str) -> Entry | None:
        """Return what the code says of a workflow; None if it does not have it now."""
        async with self._reads:
            known = self._known
            if known.entries is None:
                known.entries = await self._read()
            entries = known.entries
        if "/" not in name:  # the code is that of one app
            entries = {split_name(full)[1]: entry for full, entry in entries.items()}
        return entries.get(name)

    async def noticing(self, changes: AsyncIterator[list[Path]]) -> AsyncIterator[list[Path]]:
        """Yield changes of files, and forget what was read before them."""
        async for paths in changes:
            self._known = _Known()
            linecache.clearcache()
            yield paths

    async def replay(self, run_id: UUID, length: int) -> Replayed:
        """Feed the log of a run to the code; see `Catalogue.replay`. One at a time."""
        async with self._replays:
            replayed = self._known.replayed
            if (run_id, length) not in replayed:
                while len(replayed) >= _MOST_REPLAYED:
                    replayed.pop(next(iter(replayed)))
                replayed[run_id, length] = await self._replay(run_id)
            return replayed[run_id, length]

    async def _replay(self, run_id: UUID) -> Replayed:
        arguments = (*self._settings.arguments(), "--json", "replay", str(run_id), self._reference)
        try:
            output, errors = await self._run("holdfast", *arguments)
        except TimeoutError:
            return Replayed((), {}, f"the replay took longer than {_PATIENCE_SECONDS:g} s")
        entries: list[ReplayedEntry] = []
        for text in output.splitlines():
            with suppress(msgspec.DecodeError):  # what the code writes itself
                entries.append(msgspec.json.decode(text, type=ReplayedEntry))
        texts = {line: _text_of(line) for entry in entries for line in entry.lines}
        return Replayed(tuple(entries), texts, _problem(errors))

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
            # As workers have it, so that `replay` need not start again to fix it.
            env={**os.environ, "PYTHONHASHSEED": "0", **self._settings.environment()},
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


def _text_of(line: str) -> str:
    return linecache.getline(*split_line(line)).strip()


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
