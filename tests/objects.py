"""A server that speaks S3, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager

from tests.ports import serve


@contextmanager
def running_s3() -> Generator[str]:
    """Run the server with the bucket `runs` for the length of the block; give its URL."""
    server, port = serve(_start)
    try:
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


def _start(port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
