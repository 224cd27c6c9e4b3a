"""B12: each row of the failure table, while processes are really killed.

What a caller does and sees goes through REST alone. Beside it there are only the hand that kills,
and the ledger of what the steps have done outside. Two answers are other than the table's: an
early signal is kept, and a step that has failed for good raises in the workflow.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from holdfast.database.embedded import EmbeddedServer
from tests.cli.processes import until
from tests.clusters import Homes
from tests.server.failures import Crew
from tests.server.processes import server

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of the servers of this module, where their key is."""
    path = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(path))
        yield path


@pytest.fixture(scope="module")
def database(home: Path, homes: Homes) -> Iterator[EmbeddedServer]:
    """A database server that these tests may kill."""
    with EmbeddedServer.acquire(homes.make(home / "data")) as opened:
        yield opened


@pytest.fixture(scope="module")
def http(database: EmbeddedServer, home: Path) -> Iterator[httpx.Client]:
    """A caller of a server that knows no app."""
    with server(database.url, home) as (_, http):
        yield http


@pytest.fixture
def crew(database: EmbeddedServer, tmp_path: Path) -> Iterator[Crew]:
    """Workers that end with the test."""
    crew = Crew(database.url, tmp_path)
    yield crew
    crew.end()


def ask(http: httpx.Client, method: str, path: str, body: object = None, status: int = 200) -> Any:
    answer = (
        http.request(method, path, json=body) if body is not None else http.request(method, path)
    )
    assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
    return answer.json()


def start(http: httpx.Client, name: str, input: object) -> str:
    """Start a run, and return its path."""
    path = f"/v1/workflows/{name}/runs?app=table"
    return f"/v1/runs/{ask(http, 'POST', path, {'input': input}, 201)['run_id']}"


def end_of(http: httpx.Client, path: str, status: str = "completed") -> dict[str, Any]:
    """Wait for the end of a run."""

    def ended() -> Any:
        run = ask(http, "GET", f"{path}?wait=5")
        return None if run["status"] == "running" else run

    run: dict[str, Any] = until(ended, f"the end of {path}")
    assert run["status"] == status, run
    return run


def events(http: httpx.Client, path: str) -> list[str]:
    return [each["type"] for each in ask(http, "GET", f"{path}/events?limit=200")["events"]]


def steps(http: httpx.Client, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(http, "GET", f"{path}/steps")["steps"]
    return found


def test_b12_a_worker_that_crashes_in_a_step(http: httpx.Client, crew: Crew) -> None:
    """Another one executes the step again; what was recorded before is not repeated."""
    path = start(http, "order", ["a", "b"])
    doomed = crew.start()
    crew.open("a")
    [first] = crew.await_acts("b")
    holder = ask(http, "GET", path)["wait"]["worker"]
    assert [each["outcome"] for each in steps(http, path)][:1] == ["done"]
    crew.kill(doomed)
    crew.start()
    crew.await_acts("b", 2)
    assert ask(http, "GET", path)["wait"]["worker"] not in (None, holder)
    crew.open("b")
    output = end_of(http, path)["output"]
    assert output == [crew.acts("a")[0]["nonce"], crew.acts("b")[1]["nonce"]]
    assert len(crew.acts("a")) == 1
    assert first["nonce"] not in output
    assert events(http, path).count("StepCompleted") == 2


def test_b12_a_worker_that_crashes_after_it_has_recorded_a_step(
    http: httpx.Client, crew: Crew
) -> None:
    """The step and what continues the run are one transaction: the run cannot be left behind.

    The caller sees the record over REST, and the worker is killed at that moment.
    """
    path = start(http, "order", ["a", "b"])
    doomed = crew.start()
    crew.await_acts("a")
    crew.open("a")
    until(lambda: "StepCompleted" in events(http, path), "the record of the step")
    crew.kill(doomed)
    crew.start()
    crew.open("b")
    output = end_of(http, path)["output"]
    assert output[0] == crew.acts("a")[0]["nonce"]
    assert len(crew.acts("a")) == 1


def test_b12_a_step_that_has_used_up_its_attempts(http: httpx.Client, crew: Crew) -> None:
    """The workflow may continue without it; else the run fails, is looked into, and is retried."""
    careful, order = start(http, "careful", "away"), start(http, "order", ["away"])
    doomed = crew.start()
    crew.await_acts("away", 2)
    crew.kill(doomed)  # both are in their first attempt
    crew.open("away", "the courier is away")
    crew.start()
    assert end_of(http, careful)["output"] == "without it: the courier is away"
    assert "the courier is away" in str(end_of(http, order, "failed")["error"])
    [step] = steps(http, order)
    assert (step["outcome"], step["attempts"]) == ("failed", 3)
    assert "the courier is away" in step["error"]
    assert [each["number"] for each in step["failures"]] == [1, 2, 3]
    crew.open("away")
    retried = ask(http, "POST", f"{order}/retry", status=201)["run_id"]
    end_of(http, f"/v1/runs/{retried}")
    assert ask(http, "GET", order)["status"] == "failed"  # it stays to be read


def test_b12_an_error_outside_of_a_step(http: httpx.Client, crew: Crew) -> None:
    """The run fails with it, also where a worker died before it got that far."""
    path = start(http, "clumsy", "a")
    doomed = crew.start()
    crew.await_acts("a")
    crew.kill(doomed)
    crew.open("a")
    crew.start()
    error = end_of(http, path, "failed")["error"]
    assert (error["kind"], error["message"]) == ("builtins.LookupError", "nobody thought of that")
    assert "nobody thought of that" in ask(http, "GET", f"{path}/why")["because"]
    assert events(http, path).count("WorkflowFailed") == 1


def has_begun(http: httpx.Client, path: str) -> bool:
    """Return whether a run waits, or has done so."""
    return ask(http, "GET", path)["state"] == "waiting" or "TimerScheduled" in events(http, path)


def test_b12_a_wait_that_times_out(http: httpx.Client, crew: Crew) -> None:
    """The code takes its other branch, although no worker lived when the time was up."""
    crew.open("a")
    for seconds in (1.0, 5.0, 25.0):  # a busy machine may need more to kill the worker before
        path = start(http, "waiter", {"gate": "a", "seconds": seconds})
        doomed = crew.start()
        until(partial(has_begun, http, path), "the wait")
        why = ask(http, "GET", f"{path}/why")["because"]
        crew.kill(doomed)
        if ask(http, "GET", path)["state"] == "waiting":
            break
    assert "paid" in why
    until(lambda: ask(http, "GET", path)["state"] == "queued", "the end of its time")
    crew.start()
    assert end_of(http, path)["output"] == "not paid in time"
    assert "TimerFired" in events(http, path)
    late = ask(http, "POST", f"{path}/signals/paid", "now", status=409)
    assert late["type"] == "urn:holdfast:problem:run-ended"


def test_b12_a_signal_that_comes_before_its_wait(http: httpx.Client, crew: Crew) -> None:
    """It is kept, though the worker dies before the code waits for it."""
    path = start(http, "waiter", {"gate": "a", "seconds": 60.0})
    doomed = crew.start()
    crew.await_acts("a")
    assert ask(http, "POST", f"{path}/signals/paid", "in cash")["changed"]
    crew.kill(doomed)
    crew.open("a")
    crew.start()
    assert end_of(http, path)["output"] == "in cash"


def test_b12_two_workers_that_have_the_same_run(http: httpx.Client, crew: Crew) -> None:
    """One of two holds it. One that was taken for dead cannot record what it did meanwhile."""
    path = start(http, "order", ["a"])
    frozen = crew.start()
    crew.await_acts("a")
    lease = ask(http, "GET", path)["wait"]["lease_no"]
    crew.freeze(frozen)
    crew.start()
    acts = crew.await_acts("a", 2)
    assert acts[0]["pid"] == frozen.pid
    assert ask(http, "GET", path)["wait"]["lease_no"] > lease
    crew.thaw(frozen)
    crew.open("a")
    assert end_of(http, path)["output"] == [acts[1]["nonce"]]
    second = start(http, "order", ["a"])  # both take runs again, and each run has one of them
    assert len(end_of(http, second)["output"]) == 1
    assert len(crew.acts("a")) == 3
    assert events(http, path).count("StepCompleted") == 1
    assert ask(http, "GET", path)["output"] == [acts[1]["nonce"]]


def test_b12_a_database_that_dies_in_a_step(
    http: httpx.Client, crew: Crew, database: EmbeddedServer
) -> None:
    """Callers are told, and nothing is lost: the run continues with the database."""
    path = start(http, "order", ["a", "b"])
    crew.start()
    crew.open("a")
    crew.await_acts("b")
    assert database.postmaster_pid is not None
    os.kill(database.postmaster_pid, signal.SIGKILL)
    until(lambda: http.get("/ready").status_code == 503, "that it is not ready")
    problem = ask(http, "GET", path, status=503)
    assert problem["type"] == "urn:holdfast:problem:database"
    assert ask(http, "GET", "/live") == {"live": True}
    database.ensure_running()
    until(lambda: http.get("/ready").status_code == 200, "that it is ready")
    crew.open("b")
    assert end_of(http, path)["output"][0] == crew.acts("a")[0]["nonce"]
    assert len(crew.acts("a")) == 1


def test_b12_a_start_that_is_sent_again(
    http: httpx.Client, crew: Crew, database: EmbeddedServer, home: Path
) -> None:
    """The server is killed, so its caller asks another: the same run, and how it stands."""
    path, body = "/v1/workflows/order/runs?app=table", {"input": ["a"]}
    key = {"Idempotency-Key": str(uuid4())}
    with server(database.url, home) as (process, first):
        run_id = first.post(path, json=body, headers=key).json()["run_id"]
        process.send(signal.SIGKILL)
        process.ended()
    again = http.post(path, json=body, headers=key)
    told = again.json()
    warning = told.pop("warning")  # None if an earlier test had a worker of the app
    assert warning is None or "has never had a worker" in warning
    assert (again.status_code, told) == (
        200,
        {"run_id": run_id, "created": False, "status": "running"},
    )
    crew.start()
    crew.open("a")
    end_of(http, f"/v1/runs/{run_id}")
    ended = http.post(path, json={"input": ["z"]}, headers=key).json()
    assert ended == {"run_id": run_id, "created": False, "status": "completed", "warning": None}
    found = ask(http, "GET", f"/v1/runs?workflow=table/order&key={key['Idempotency-Key']}")["runs"]
    assert [each["run_id"] for each in found] == [run_id]
    assert len(crew.acts("a")) == 1


def test_b12_a_definition_that_is_gone(http: httpx.Client, crew: Crew) -> None:
    """Its runs are not failed: they say who is missing. It is restored, or they are ended."""
    kept, dropped = start(http, "order", ["a"]), start(http, "order", ["a"])
    doomed = crew.start()
    crew.await_acts("a", 2)
    crew.kill(doomed)
    crew.start(complete=False)

    def unserved(path: str) -> bool:
        why = ask(http, "GET", f"{path}/why")
        return "no live worker serves table/order@1" in why["because"]

    for path in (kept, dropped):
        until(partial(unserved, path), "what is missing")
        assert ask(http, "GET", path)["status"] == "running"
    until(
        lambda: "table/other@1" in str(ask(http, "GET", f"{kept}/why")["details"]),
        "the worker that cannot take it",
    )
    assert ask(http, "DELETE", f"{dropped}?reason=gone")["changed"]
    assert ask(http, "GET", dropped)["status"] == "running"  # its code may clean up
    assert ask(http, "POST", f"{dropped}/terminate", {"reason": "gone"})["changed"]
    assert ask(http, "GET", dropped)["status"] == "terminated"
    crew.start()
    crew.open("a")
    end_of(http, kept)
