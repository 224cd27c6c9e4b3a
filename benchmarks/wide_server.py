"""The HTTP server without its bounds on streams: here one caller follows thousands of runs."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from holdfast.cli.process.worker import loop_factory
from holdfast.database.embedded import default_home
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.server.guard import StreamGate
from holdfast.server.running import STREAM_SECONDS, bind, run
from holdfast.server.tokens import machine_key

STREAMS = 10_000


async def serve(database: str, port: int) -> None:
    """Serve until SIGTERM."""
    access = KeyAccess(machine_key(default_home()))
    server = Server(database, auth=access, stream_seconds=STREAM_SECONDS)
    server.site.streams = StreamGate(STREAMS, STREAMS)
    bound = bind("127.0.0.1", port)
    place = f"http://127.0.0.1:{bound.getsockname()[1]}"
    await run(server, bound, ready=lambda: print("serving at", place, file=sys.stderr, flush=True))


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{Path(__file__).stem}")
    parser.add_argument("--database", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(options.database, options.port))


if __name__ == "__main__":
    main()
