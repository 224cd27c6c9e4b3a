"""The synchronous client has the shape of the asynchronous one."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.client import Client, Message
from holdfast.client.handle import RunHandle
from holdfast.errors import ConfigurationError
from holdfast.sync import SyncClient, SyncMessage, SyncRunHandle

ROOT = Path(__file__).parents[2]


def public(kind: type) -> list[str]:
    methods = inspect.getmembers(kind, inspect.isfunction)
    return [name for name, _ in methods if not name.startswith("_")]


CLIENT, SYNC_CLIENT = Client(), SyncClient()
GROUPS = [name for name in vars(CLIENT) if not name.startswith("_")]


def test_both_clients_have_the_same_groups() -> None:
    assert [name for name in vars(SYNC_CLIENT) if not name.startswith("_")] == GROUPS
    assert {"runs", "approvals", "activities", "queues", "workflows", "workers"} <= {*GROUPS}


@pytest.mark.parametrize(
    ("plain", "sync"),
    [
        (Client, SyncClient),
        (RunHandle, SyncRunHandle),
        (Message, SyncMessage),
        *((type(getattr(CLIENT, name)), type(getattr(SYNC_CLIENT, name))) for name in GROUPS),
    ],
)
def test_every_method_has_a_synchronous_twin_with_the_same_parameters(
    plain: type, sync: type
) -> None:
    assert public(plain) == public(sync)
    for name in public(plain):
        original, twin = getattr(plain, name), getattr(sync, name)
        expected = inspect.signature(original).parameters
        assert inspect.signature(twin).parameters == expected, name
        assert "Async" not in str(inspect.signature(twin).return_annotation), name
        assert twin.__module__.startswith("holdfast.sync."), name
        assert twin.__qualname__.startswith("Sync"), name
        assert not inspect.iscoroutinefunction(twin), name
        assert twin.__doc__, name


def test_a_synchronous_method_has_the_whole_documentation_of_its_twin() -> None:
    whole, said = inspect.getdoc(Client.start) or "", inspect.getdoc(SyncClient.start) or ""
    assert said == whole.replace("await ", "")
    assert "```python" in said


def test_a_synchronous_method_shows_what_it_returns() -> None:
    runs, queues = type(SYNC_CLIENT.runs), type(SYNC_CLIENT.queues)
    shown = {
        runs.fork: "SyncRunHandle[object]",
        runs.iterate: "Generator[Run]",
        queues.receive: "builtins.list[SyncMessage]",
        queues.page: "MessagePage",
        SyncClient.start: "SyncRunHandle[object]",
    }
    for method, result in shown.items():
        assert inspect.signature(method).return_annotation == result


def test_both_clients_are_made_from_the_same_parameters() -> None:
    assert (
        inspect.signature(Client.__init__).parameters
        == inspect.signature(SyncClient.__init__).parameters
    )


def test_the_generated_modules_are_up_to_date() -> None:
    pytest.importorskip("ruff")
    command = [sys.executable, str(ROOT / "scripts" / "generate_sync.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_a_client_that_is_not_open_says_both_ways_to_open_it() -> None:
    with pytest.raises(ConfigurationError, match=r"with SyncClient.*SyncClient\(\)\.open\(\)"):
        SyncClient().runs.list()
    with pytest.raises(ConfigurationError, match=r"with Client.*await Client\(\)\.open\(\)"):
        await Client().runs.list()
