"""The server as a process: real sockets, signals, and a server that is killed."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest

from holdfast.client import Client
from tests.cli.processes import running
from tests.server.processes import server
from tests.server.test_database import BLOCKED

pytestmark = pytest.mark.crash

END_SESSIONS = "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def read_until(lines: Iterator[str], event: str) -> dict[str, str]:
    """Read a stream up to an event, and return its fields."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        fields = {} if not line else {**fields, name: value}
        if name == "data" and fields.get("event") == event:
            return fields
    raise AssertionError(f"the stream ended before {event}")


async def test_a_server_that_stops_says_goodbye(database_url: str, tmp_path: Path) -> None:
    """SIGTERM ends streams and waits at once, in order, and the process with them."""
    async with Client(database_url) as client:
        run_id = (await client.start("shop/checkout", 7)).run_id
    with server(database_url, tmp_path) as (process, http):
        assert http.get("/ready").status_code == 200
        path = f"/v1/runs/{run_id}"
        waiting = socket.create_connection((http.base_url.host, http.base_url.port), timeout=30)
        key = http.headers["authorization"]
        asked = f"GET {path}?wait=60 HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\n\r\n"
        waiting.sendall(asked.encode())  # it is accepted before the stream is
        with waiting, http.stream("GET", f"{path}/attach") as stream:
            lines = stream.iter_lines()
            read_until(lines, "WorkflowStarted")
            process.send(signal.SIGTERM)
            assert json.loads(read_until(lines, "bye")["data"])["reason"]
            assert list(lines)[-1:] in ([], [""])
            assert waiting.recv(100).startswith(b"HTTP/1.1 200")
        assert process.ended() == 0
        assert "Traceback" not in process.text()


async def test_edge_14_lengths_that_lie(database_url: str, tmp_path: Path) -> None:
    """Edge case 14. A body that is cut starts nothing, and what follows a body is not a request."""
    body = b'{"input": 7}'
    with server(database_url, tmp_path) as (_, http):
        key = http.headers["authorization"]
        head = (
            "POST /v1/workflows/checkout/runs?app=shop HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: {key}\r\nContent-Type: application/json\r\nContent-Length: "
        ).encode()

        def answers(rest: bytes, *, cut: bool = False) -> list[bytes]:
            """Return the status of each answer until the server closes; `cut` ends the request."""
            address = http.base_url.host, http.base_url.port
            with socket.create_connection(address, timeout=30) as connection:
                connection.sendall(head + rest)
                if cut:
                    connection.shutdown(socket.SHUT_WR)
                received = b"".join(iter(lambda: connection.recv(65_536), b""))
            return re.findall(rb"HTTP/1\.1 (\d+)", received)

        assert answers(b"99\r\n\r\n" + body, cut=True) == []
        for lie in (b"-1", b"12, 13", b"12\r\nContent-Length: 2", b"1e1"):
            assert answers(lie + b"\r\n\r\n" + body) == [b"400"], lie
        assert http.get("/v1/runs").json()["runs"] == []
        assert answers(b"12\r\n\r\n" + body + b"garbage\r\n\r\n") == [b"201", b"400"]
        assert len(http.get("/v1/runs").json()["runs"]) == 1


async def test_edge_6_a_second_sigterm_does_not_wait_for_requests(
    database_url: str, tmp_path: Path
) -> None:
    """Edge case 6. At the first, streams end; a request that is not sent whole is waited for."""
    async with Client(database_url) as client:
        run_id = (await client.start("shop/checkout", 7)).run_id
    with server(database_url, tmp_path, "--grace", "10m") as (process, http):
        half = socket.create_connection((http.base_url.host, http.base_url.port), timeout=30)
        path, key = "/v1/workflows/checkout/runs?app=shop", http.headers["authorization"]
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\n"
        half.sendall(
            f"{head}Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{{".encode()
        )
        with half, http.stream("GET", f"/v1/runs/{run_id}/attach") as stream:
            lines = stream.iter_lines()
            read_until(lines, "WorkflowStarted")
            process.send(signal.SIGTERM)
            read_until(lines, "bye")
            assert process.popen.poll() is None
            process.send(signal.SIGTERM)
            assert process.ended() == 0
        assert "Traceback" not in process.text()


async def test_requests_that_are_cut_off_by_the_end_are_told_to_come_again(
    database_url: str, tmp_path: Path
) -> None:
    """They wait for the database for longer than --grace: whether they had an effect is open."""
    connection, watcher = [await asyncpg.connect(database_url) for _ in range(2)]
    with server(database_url, tmp_path, "--grace", "1s") as (process, http):
        async with connection.transaction():
            await connection.execute("lock table holdfast.runs in access exclusive mode")
            path = "/v1/workflows/checkout/runs?app=shop"
            post = asyncio.create_task(asyncio.to_thread(http.post, path, json={"input": 7}))
            while not (post.done() or await watcher.fetchval(BLOCKED)):
                await asyncio.sleep(0.01)
            process.send(signal.SIGTERM)
            answer = await post
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), answer.text
        assert answer.json()["type"] == "urn:holdfast:problem:stopping"
        assert process.ended() == 0
        assert "Traceback" not in process.text()
    await connection.close()
    await watcher.close()


async def test_a_stream_whose_database_goes_away_ends_with_bye(
    database_url: str, tmp_path: Path
) -> None:
    """And with a line in the log, not with a traceback for each reader."""
    async with Client(database_url) as client:
        run_id = (await client.start("shop/checkout", 7)).run_id
    parts = urlsplit(database_url)
    name = parts.path[1:]
    with server(database_url, tmp_path) as (process, http):
        with http.stream("GET", f"/v1/runs/{run_id}/streams/tokens/follow") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "retry: 1000"
            connection = await asyncpg.connect(parts._replace(path="/postgres").geturl())
            try:
                await connection.execute(f"alter database {name} allow_connections false")
                await connection.execute(END_SESSIONS, name)
                read_until(lines, "bye")
            finally:
                await connection.execute(f"alter database {name} allow_connections true")
                await connection.close()
        assert "Traceback" not in process.text()


HOST_PROGRAM = """
import sys
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from holdfast.server import Principal, Server
from holdfast.server.running import bind

ops = Server(sys.argv[1], auth=lambda _: Principal("ann", "admin"), hosts=[], stream_seconds=0.5)
bound = bind("127.0.0.1", 0)
print(bound.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(Starlette(routes=[Mount("/ops", ops)]), log_config=None)).run([bound])
"""


def test_edge_6_the_host_of_a_mounted_server_is_not_held_up(database_url: str) -> None:
    """Edge case 6. Its signals are the host's: a stream ends by itself when its time is up."""
    command = [sys.executable, "-c", HOST_PROGRAM, database_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        try:
            assert host.stdout is not None
            address = f"http://127.0.0.1:{host.stdout.readline().strip()}/ops"
            with httpx.Client(base_url=address, timeout=30) as http:
                started = http.post("/v1/workflows/checkout/runs?app=shop", json={"input": 7})
                with http.stream("GET", f"/v1/runs/{started.json()['run_id']}/attach") as stream:
                    lines = stream.iter_lines()
                    read_until(lines, "WorkflowStarted")
                    host.send_signal(signal.SIGTERM)
                    read_until(lines, "bye")
            assert host.wait(60) in (0, -signal.SIGTERM)
        finally:
            host.kill()


async def test_a_stream_continues_with_another_server(database_url: str, tmp_path: Path) -> None:
    """A server is killed; what its caller has not seen, another one sends, and nothing twice."""
    async with Client(database_url) as client:
        run_id = (await client.start("shop/checkout", 7)).run_id
        path = f"/v1/runs/{run_id}/attach"
        with server(database_url, tmp_path) as (process, http):
            with http.stream("GET", path) as stream:
                lines = stream.iter_lines()
                read_until(lines, "WorkflowStarted")
                await client.signal(run_id, "go", 1)
                seen = read_until(lines, "SignalReceived")["id"]
                process.send(signal.SIGKILL)
                with pytest.raises(httpx.HTTPError):
                    list(lines)
            process.ended()
        await client.signal(run_id, "go", 2)
        await client.runs.terminate(run_id)
        with server(database_url, tmp_path) as (process, http):
            with http.stream("GET", path, headers={"Last-Event-ID": seen}) as stream:
                text = "\n".join(stream.iter_lines())
            assert re.findall(r"^id: (.*)$", text, re.MULTILINE) == ["2", "3", "end"]
            process.send(signal.SIGINT)
            assert process.ended() == 130


def test_a_port_that_is_taken_is_said(database_url: str, tmp_path: Path) -> None:
    with server(database_url, tmp_path) as (_, http):
        port = str(http.base_url.port)
        arguments = ("server", "--database", database_url, "--port", port)
        with running(tmp_path / "second.log", *arguments) as second:
            assert second.ended() == 2
            assert "choose another with --host and --port" in second.text()
