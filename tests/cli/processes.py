"""`holdfast` as a process: started, watched by what it writes, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from tests.cli.forks import Fork, fork

Popen = subprocess.Popen[bytes] | Fork
T = TypeVar("T")

PATIENCE_SECONDS = 120.0
SAMPLE = str(Path(__file__).with_name("sample.py"))


class Process:
    """A running `holdfast`; its stdout and stderr go into one file."""

    def __init__(self, popen: Popen, log: Path) -> None:
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
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
        files[0].write(stdin or "")
        files[0].seek(0)
        popen = start(arguments, environment(env), [file.fileno() for file in files])
        try:
            popen.wait(PATIENCE_SECONDS)
        finally:
            popen.kill()
            code = popen.wait()
        for file in files[1:]:
            file.seek(0)
        return subprocess.CompletedProcess(
            command(*arguments), code, files[1].read(), files[2].read()
        )


def start(
    arguments: Sequence[str],
    env: Mapping[str, str],
    streams: Sequence[int],
    cwd: Path | None = None,
    new_session: bool = False,
) -> Popen:
    """Start a command; `streams` are the descriptors of its stdin, stdout and stderr."""
    if (forked := fork(arguments, env, streams, cwd, new_session)) is not None:
        return forked
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        command(*arguments),
        env=env,
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=new_session,
    )


@contextmanager
def running(
    log: Path,
    *arguments: str,
    cwd: Path | None = None,
    stdin: int | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    """Run a command for the length of the block; killed at its end if it still lives."""
    with log.open("wb") as output, Path(os.devnull).open() as nothing:
        streams = (nothing.fileno() if stdin is None else stdin, output.fileno(), output.fileno())
        popen = start(arguments, environment(env), streams, cwd)
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
