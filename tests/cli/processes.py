"""`holdfast` as a process: started, watched by what it writes, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 120.0
SAMPLE = str(Path(__file__).with_name("sample.py"))


class Process:
    """A running `holdfast`; its stdout and stderr go into one file."""

    def __init__(self, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.popen, self.log = popen, log

    @property
    def pid(self) -> int:
        return self.popen.pid

    def text(self) -> str:
        return self.log.read_text()

    def await_text(self, part: str, times: int = 1) -> str:
        """Wait until it has written this, so many times."""

        def look() -> str | None:
            assert self.popen.poll() is None or self.text().count(part) >= times, self.text()
            return self.text() if self.text().count(part) >= times else None

        return until(look, f"{part!r} x{times} in:\n{self.text()}")

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def ended(self) -> int:
        return self.popen.wait(PATIENCE_SECONDS)


def until(look: Callable[[], T | None], what: str = "") -> T:
    """Look until there is something to see."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if (seen := look()) is not None and seen is not False:
            return seen
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {what}")


def save(file: Path, text: str) -> None:
    """Write a file as editors do: all of it at once, so that it is one change to who watches."""
    unfinished = file.parent.with_name(f"{file.name}.unfinished")
    unfinished.write_text(text)
    unfinished.replace(file)


def gone(pid: int) -> bool | None:
    """Return True if a process has ended, else None: the form that `until` waits for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return True if state == "Z" else None


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", *arguments]


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without what would point at another database, or change what is seen."""
    dropped = {"DATABASE_URL", "HOLDFAST_DATABASE_URL", "HOLDFAST_HOME"}
    dropped |= {"PYTHONHASHSEED", "PYTHONUNBUFFERED"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | dict(changes or {})


def call(
    *arguments: str, env: Mapping[str, str] | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        command(*arguments),
        env=environment(env),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@contextmanager
def running(
    log: Path,
    *arguments: str,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    """Run a command for the length of the block; killed at its end if it still lives."""
    with log.open("wb") as output:
        popen = subprocess.Popen(
            command(*arguments),
            env=environment(env),
            cwd=cwd,
            stdin=stdin,
            stdout=output,
            stderr=output,
        )
    try:
        yield Process(popen, log)
    finally:
        if popen.poll() is None:
            popen.terminate()
            try:
                popen.wait(PATIENCE_SECONDS)
            finally:
                popen.kill()
                popen.wait()
