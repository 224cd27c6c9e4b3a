"""A server that speaks S3, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager

_PATIENCE_SECONDS = 60.0


@contextmanager
def running_s3() -> Generator[str]:
    """Run the server with the bucket `runs` for the length of the block; give its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_port(port, server)
        url = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(urllib.request.Request(f"{url}/runs", method="PUT")):
            pass
        yield url
    finally:
        server.kill()
        server.wait()


def environment(url: str) -> dict[str, str]:
    """Return the variables with which programs reach the server."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }


def _await_port(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if server.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return
