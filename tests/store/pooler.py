"""A PgBouncer between the tests and the database, where the system has one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.proxy import Proxy

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
needs_pgbouncer = pytest.mark.skipif(
    PROGRAM is None, reason="this system has no pgbouncer (apt-get install pgbouncer)"
)
# Fewer than the clients have connections, so that sessions do change hands.
_SERVER_CONNECTIONS = 3
_ACCOUNT = "nobody"  # it refuses to be root


@contextmanager
def pgbouncer(database_url: str, mode: str, folder: Path, port: int) -> Iterator[str]:
    """Run a pooler in a mode in front of a database; give the URL through it."""
    size = 100 if mode == "session" else _SERVER_CONNECTIONS
    with Proxy(database_url) as proxy:  # the socket's folder may be closed to the account
        yield from _serve(proxy, mode, size, folder, port)


def _serve(proxy: Proxy, mode: str, size: int, folder: Path, port: int) -> Iterator[str]:
    assert PROGRAM is not None
    parts = urlsplit(proxy.url)
    config = folder / "pgbouncer.ini"
    config.write_text(f"""
[databases]
* = host=127.0.0.1 port={proxy.port} user={parts.username}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
{f"user = {_ACCOUNT}" if os.geteuid() == 0 else ""}
""")
    errors = folder / "pgbouncer.err"
    with errors.open("wb") as output:
        process = subprocess.Popen([PROGRAM, str(config)], stderr=output, stdout=subprocess.DEVNULL)
    try:
        _wait_for(port, process, errors)
        yield f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"
    finally:
        process.kill()
        process.wait()
        print(f"pgbouncer said:\n{errors.read_text()}")  # shown with a test that failed


def _wait_for(port: int, process: subprocess.Popen[bytes], errors: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as link:
            if link.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"pgbouncer does not serve: {errors.read_text()}")
