"""A PgBouncer between the tests and the database, where the system has one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.ports import serve
from tests.proxy import Proxy

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
needs_pgbouncer = pytest.mark.skipif(
    PROGRAM is None, reason="this system has no pgbouncer (apt-get install pgbouncer)"
)
# Fewer than the clients have connections, so that sessions do change hands.
_SERVER_CONNECTIONS = 3
_ACCOUNT = "nobody"  # it refuses to be root


@contextmanager
def pgbouncer(database_url: str, mode: str, folder: Path) -> Iterator[str]:
    """Run a pooler in a mode in front of a database; give the URL through it."""
    size = 100 if mode == "session" else _SERVER_CONNECTIONS
    with Proxy(database_url) as proxy:  # the socket's folder may be closed to the account
        yield from _serve(proxy, mode, size, folder)


def _serve(proxy: Proxy, mode: str, size: int, folder: Path) -> Iterator[str]:
    parts = urlsplit(proxy.url)
    config, errors = folder / "pgbouncer.ini", folder / "pgbouncer.err"

    def start(port: int) -> subprocess.Popen[bytes]:
        assert PROGRAM is not None
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
        command = [PROGRAM, str(config)]
        with errors.open("wb") as output:
            return subprocess.Popen(command, stderr=output, stdout=subprocess.DEVNULL)

    process, port = serve(start)
    try:
        yield f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"
    finally:
        process.kill()
        process.wait()
        print(f"pgbouncer said:\n{errors.read_text()}")  # shown with a test that failed
