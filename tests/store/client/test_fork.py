"""A synchronous client that was opened before a fork serves the child as well as the parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from holdfast.errors import ConfigurationError
from holdfast.store.memory import MemoryStore
from holdfast.sync import SyncClient

from .workflows import tick

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
    # Python's own warning, from 3.12 on: the client has a thread.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


def in_child(work: Callable[[], object]) -> int:
    """Fork, do the work in the child, and return its exit code; one that hangs is ended."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_child_and_parent_both_continue(database_url: str) -> None:
    with SyncClient(database_url) as client:
        before = client.start(tick, key="before")

        def use() -> None:
            assert not client.start(tick, key="child").already_existed
            assert before.get().key == "before"  # a handle from before the fork
            assert before.terminate()
            assert client.runs.wait(before.run_id, timeout=30).status == "terminated"
            client.close()

        assert in_child(use) == 0
        assert in_child(before.get) == 0
        assert before.status() == "terminated"
        assert not client.start(tick, key="parent").already_existed
        assert {run.key for run in client.runs.list().runs} == {"before", "child", "parent"}


def test_a_child_that_does_not_use_it_may_close_it(database_url: str) -> None:
    with SyncClient(database_url) as client:
        assert in_child(client.close) == 0
        assert not client.start(tick).already_existed


def test_an_iterator_from_before_the_fork_says_so(database_url: str) -> None:
    with SyncClient(database_url) as client:
        client.start_many(tick, [None] * 3)
        runs = client.runs.iterate(limit=1)
        next(runs)

        def go_on() -> None:
            with pytest.raises(ConfigurationError, match="begun before the process was forked"):
                next(runs)

        assert in_child(go_on) == 0
        assert len(list(runs)) == 2


def test_threads_of_a_child_open_it_once(database_url: str) -> None:
    with SyncClient(database_url) as client:
        client.start(tick, key="k")

        def use() -> None:
            with ThreadPoolExecutor(8) as threads:
                found = list(
                    threads.map(lambda _: client.start(tick, key="k").already_existed, range(8))
                )
            assert found == [True] * 8

        assert in_child(use) == 0


def test_a_given_store_is_not_opened_again() -> None:
    with SyncClient(store=MemoryStore()) as client:

        def use() -> None:
            with pytest.raises(ConfigurationError, match="make a store and a client in the child"):
                client.runs.list()

        assert in_child(use) == 0


def start_in_pool(client: SyncClient, number: int) -> UUID:
    signal.alarm(60)
    return client.start(tick, key=f"pool-{number}").run_id


_client: SyncClient | None = None


def _start(number: int) -> UUID:
    assert _client is not None
    return start_in_pool(_client, number)


def test_a_pool_of_forked_processes_shares_what_its_parent_opened(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SyncClient(database_url) as client:
        client.start(tick)
        monkeypatch.setattr(sys.modules[__name__], "_client", client)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            started = pool.map(_start, range(6))
        assert len(set(started)) == 6
        assert len(client.runs.list().runs) == 7


SCRIPT = """
import os, sys, warnings
warnings.simplefilter("ignore")
from holdfast import App, Context, SyncClient
app = App("forked")

@app.workflow
async def tick(ctx: Context) -> None: ...

client = SyncClient(sys.argv[1]).open()
handle = client.start(tick)
following = client.runs.follow_log(handle.run_id)  # listens
next(following)
pid = os.fork()
if pid == 0:
    if sys.argv[2] == "use":
        client.start(tick)
        client.close()
    sys.exit(0)  # with all that the interpreter does at its end
assert os.waitpid(pid, 0)[1] == 0
handle.terminate()
print([entry.event.type for entry in following])
client.start(tick)
client.close()
"""


@pytest.mark.parametrize("use", ["use", "leave"])
def test_the_end_of_a_child_leaves_the_parents_connections_alone(
    database_url: str, use: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, database_url, use],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == "['WorkflowTerminated']"
