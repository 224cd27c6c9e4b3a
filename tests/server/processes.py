"""`holdfast server` as a process, and a caller that has its key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.cli.processes import Process, running


@contextmanager
def server(url: str, home: Path, *arguments: str) -> Iterator[tuple[Process, httpx.Client]]:
    """A server on a port of its own, and a client that has its key."""
    arguments = ("server", "--database", url, "--port", "0", *arguments)
    with running(home / "server.log", *arguments) as process:
        text = process.await_text("serving")
        address = re.search(r"http://\S+", text)
        assert address is not None
        process.await_text(f"the key in {home / '.holdfast' / 'server.key'}")
        headers = {
            "Authorization": f"Bearer {(home / '.holdfast' / 'server.key').read_text().strip()}"
        }
        with httpx.Client(base_url=address.group(), headers=headers, timeout=30) as http:
            yield process, http
