"""The outside world of the demo: a file of what it was asked to do, and what it did.

It behaves like a payment provider with idempotency keys: asked twice with the same key, it acts
once and returns the first receipt again.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """A line of the ledger: that an effect was asked for, or that it happened."""

    kind: Literal["asked", "happened"]
    step: str
    id: str
    pid: int
    receipt: str = ""


class Ledger:
    """The file; each entry is on the disk before `ask` or `act` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ask(self, step: str, id: str) -> None:
        """Note that an effect was asked for."""
        with self._alone() as descriptor:
            self._append(descriptor, Entry("asked", step, id, os.getpid()))

    def act(self, step: str, id: str) -> str:
        """Carry out the effect unless it was carried out before, and return its receipt."""
        with self._alone() as descriptor:
            for entry in self.entries():
                if entry.kind == "happened" and entry.id == id:
                    return entry.receipt
            receipt = f"{step}-{os.urandom(3).hex()}"
            self._append(descriptor, Entry("happened", step, id, os.getpid(), receipt))
            return receipt

    def entries(self) -> list[Entry]:
        """Return all entries, oldest first."""
        if not self.path.exists():
            return []
        return [
            msgspec.json.decode(line, type=Entry)
            for line in self.path.read_bytes().split(b"\n")[:-1]  # the last may be half written
        ]

    def unfinished(self) -> Counter[str]:
        """Count by step what was asked for and has not happened."""
        open_steps: Counter[str] = Counter()
        for entry in self.entries():
            open_steps[entry.step] += 1 if entry.kind == "asked" else -1
        return +open_steps

    @contextmanager
    def _alone(self) -> Generator[int]:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    @staticmethod
    def _append(descriptor: int, entry: Entry) -> None:
        os.write(descriptor, msgspec.json.encode(entry) + b"\n")
        os.fsync(descriptor)
