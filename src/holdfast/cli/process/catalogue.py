"""What the code of an app says of its workflows, read in another process: code changes."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from holdfast.server.catalogue import Entry, entries_of
from holdfast.values.names import split_name

logger = logging.getLogger("holdfast.dev")

_PATIENCE_SECONDS: Final = 30.0


class ChangingCatalogue:
    """Reads an app's code in a process of its own, and again after it has changed."""

    def __init__(self, reference: str, environment: dict[str, str]) -> None:
        self._reference, self._environment = reference, environment
        self._entries: dict[str, Entry] | None = None
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
            yield paths

    async def _read(self) -> dict[str, Entry]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            self._reference,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # the worker has said it already
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                output, _ = await process.communicate()
            return msgspec.json.decode(output.splitlines()[-1], type=dict[str, Entry])
        except (TimeoutError, IndexError, msgspec.DecodeError):
            return {}
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def main() -> None:
    """Write what an app's code says as one line of JSON."""
    from holdfast.cli.process.loading import AppReference

    app = AppReference.parse(sys.argv[1]).load()
    sys.stdout.write("\n" + msgspec.json.encode(entries_of(app)).decode() + "\n")


if __name__ == "__main__":
    main()
