"""Requests made of the API's own description: no answer is one that it does not name."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.server.running import bind
from holdfast.store.memory import MemoryStore
from tests.server.shop import KEY, app

# What does not hold here, and why. Deleting a run cancels it: it can still be read. And a value
# that its schema allows may be refused: a cron expression, a token, the name of what is not there.
LEFT_OUT = "use_after_free,ensure_resource_availability,positive_data_acceptance"
SECONDS = "12"  # of making requests
MOST_FAILURES = "5"


@pytest.fixture(params=["memory", "postgres"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server of this process, on each store in turn."""
    store, database = None, None
    if request.param == "memory":
        store = MemoryStore(clock=lambda: time.time_ns() // 1000)
    else:
        database = request.getfixturevalue("database_url")
    served = Server(database, store=store, auth=KeyAccess(KEY), app=app, stream_seconds=0.05)
    bound = bind("127.0.0.1", 0)
    config = uvicorn.Config(served, log_config=None, lifespan="on", access_log=False)
    process = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(process.serve([bound])))
    thread.start()
    yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    served.site.closing.set()
    process.should_exit = True
    thread.join(30)
    bound.close()


def test_answers_are_those_of_the_description(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B9: no 5xx, no status, type or shape that the description lacks, no way past the key."""
    command = [str(Path(sys.executable).with_name("schemathesis")), "run"]
    command += [f"{url}/v1/openapi.json", "--header", f"Authorization: Bearer {KEY}"]
    command += ["--phases", "coverage,fuzzing", "--max-examples", "3", "--max-time", SECONDS]
    command += ["--exclude-checks", LEFT_OUT, "--seed", "7", "--no-color"]
    command += ["--max-failures", MOST_FAILURES, "--generation-database", "none"]
    command += ["--suppress-health-check", "too_slow"]  # which is a matter of the machine
    environment = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert "unexpected error" not in caplog.text
