"""The terminals of a reader who types what a page says.

`RUN` stands for the newest run's id, `PID` for the newest worker's process and `TOKEN` for an
activity that is to be completed from outside, as they would have to be filled in. A comment
`terminal …` marks a command that stays there while the next are typed, once its worker or its run
can be seen; `exit code N` one that does not end with 0.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import asyncpg
from click.testing import CliRunner

from holdfast.cli.root import holdfast
from tests.cli.processes import Popen, environment, start

_DEADLINE_SECONDS = 120.0
_PORTS = (":7433", ":8000")  # of `holdfast server`, and of other sites
_SERVERS = ("holdfast server", "python manage.py runserver")
_NEWEST = {
    "RUN": "select run_id::text from holdfast.runs order by created_at desc limit 1",
    "PID": "select pid::text from holdfast.workers order by heard_at desc limit 1",
    "TOKEN": "select run_id || ':' || lease_no || ':' || key from holdfast.tasks"
    " where kind = 'activity' and worker is null and attempts > 0 limit 1",
}
# What a command that stays open brings about, and where that can be seen.
_STARTED = {r"(python manage.py )?holdfast (dev|worker)\b": "workers", r"holdfast start\b": "runs"}
# What belongs to the reader's own machine, or is what runs these tests.
_ELSEWHERE = ("make ", "python3 -m venv", ".venv/bin/pip", "pip ", "source ", "git ", "systemctl ")

# Groups of commands that this process has imported, which is most of what they take; not those that
# are given code of the reader's.
_HERE = {"activities", "alerts", "approvals", "builds", "limits", "queue", "queues", "runs"}
_HERE |= {"schedules", "start", "topics", "workers", "workflows"}
_CODE = re.compile(r"[\w./]+(:\w+|\.py)")


def free_port() -> int:
    """Return a port that nobody listens at, and that no connection is given before it is used."""
    while True:
        port = random.randrange(20_000, 32_000)  # below those that systems choose themselves
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _words(command: str) -> list[str]:
    """Return the words of a command that needs no shell, else none."""
    return [] if re.search(r"[|<>&;$`*~]", command) else shlex.split(command, comments=True)


@dataclass(frozen=True)
class _Opened:
    """A command that runs, in a session of its own; stdout and stderr go into one file."""

    popen: Popen
    output: IO[bytes]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the command, unless it has ended."""
        if self.popen.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(self.popen.pid, number)

    async def ended(self, timeout: float = _DEADLINE_SECONDS) -> tuple[int, bytes]:
        """Wait for its end; return its exit code, and what it has written."""
        code = await asyncio.to_thread(self.popen.wait, timeout)
        with self.output:
            self.output.seek(0)
            return code, self.output.read()


class Terminals:
    """Run commands in a directory, against one database."""

    def __init__(self, directory: Path, database_url: str) -> None:
        self.directory, self.database_url = directory, database_url
        self._open: list[_Opened] = []
        self._connection: asyncpg.Connection | None = None
        self._port = free_port()  # in the place of the server's usual one, which may be taken

    async def type(self, command: str, comment: str) -> None:
        """Run a command as its comment says, and fail where it ends otherwise."""
        if command.startswith(_ELSEWHERE):
            return
        command = await self.fill_in(command)
        for port in _PORTS:
            command = command.replace(port, f":{self._port}")
        if command.startswith("holdfast server"):
            command += f" --port {self._port}"
        if comment.startswith("terminal"):
            await self._leave_open(command)
            return
        async with asyncio.timeout(_DEADLINE_SECONDS):
            code, output = await self._run(command)
        expected = re.search(r"exit code (\d+)", comment)
        assert code == (int(expected[1]) if expected else 0), (
            f"{command} ended with {code}: {output!r}"
        )

    async def close(self) -> None:
        """End what is still open."""
        if self._connection is not None:
            await self._connection.close()
        for opened in self._open:
            opened.send(signal.SIGTERM)
        for opened in self._open:
            try:
                await opened.ended(60)
            except subprocess.TimeoutExpired:
                opened.send(signal.SIGKILL)
                await opened.ended()

    async def _run(self, command: str) -> tuple[int | None, str | bytes]:
        """Run a command to its end; return its exit code, and what it has written."""
        words = _words(command)
        is_here = words[:1] == ["holdfast"] and not _HERE.isdisjoint(words[1:2])
        is_here = is_here and not any(_CODE.fullmatch(word) for word in words)
        if is_here and Path.cwd() == self.directory:
            runner = CliRunner(env=self._environment())
            done = await asyncio.to_thread(runner.invoke, holdfast, words[1:])
            return done.exit_code, done.output + repr(done.exception or "")
        return await self._start(command).ended()

    def _start(self, command: str) -> _Opened:
        output = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the command has ended)
        words, env = _words(command), self._environment()
        if words[:1] == ["holdfast"]:
            with Path(os.devnull).open() as nothing:
                streams = (nothing.fileno(), output.fileno(), output.fileno())
                popen = start(words[1:], env, streams, self.directory, new_session=True)
            return _Opened(popen, output)
        of_the_shell = "|" in command or command.startswith("kill ")
        of_python = words[:1] == ["python"]
        typed = command if of_the_shell else f"exec {command}"
        popen = subprocess.Popen(
            [sys.executable, *words[1:]] if of_python else typed,
            shell=not of_python,
            cwd=self.directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        return _Opened(popen, output)

    def _environment(self) -> Mapping[str, str]:
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return environment(
            {
                "PATH": programs,
                "HOLDFAST_DATABASE_URL": self.database_url,
                "HOLDFAST_HOME": str(self.directory / "home"),
            }
        )

    async def fill_in(self, text: str) -> str:
        """Put what is meant for the words in capitals."""
        for word, query in _NEWEST.items():
            if re.search(rf"\b{word}\b", text):
                found = await self._ask(query)
                assert found is not None, f"{text!r} stands where there is no {word} yet"
                text = re.sub(rf"\b{word}\b", str(found), text)
        return text

    async def until(self, query: str) -> object:
        """Return what a query gives, once that is something and not false."""
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while not (found := await self._ask(query)):
                await asyncio.sleep(0.05)
        return found

    async def _leave_open(self, command: str) -> None:
        table = next((table for start, table in _STARTED.items() if re.match(start, command)), None)
        before = await self._count(table)
        self._open.append(self._start(command))
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while table is not None and await self._count(table) <= before:
                await asyncio.sleep(0.05)
            while command.startswith(_SERVERS) and not await self._listens():
                await asyncio.sleep(0.05)

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True

    async def _count(self, table: str | None) -> int:
        if table is None or await self._ask(f"select to_regclass('holdfast.{table}')") is None:
            return 0
        return int(str(await self._ask(f"select count(*) from holdfast.{table}")))

    async def _ask(self, query: str) -> object:
        """Ask over one connection: most questions are asked again and again."""
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self.database_url)
        return await self._connection.fetchval(query)
