"""`holdfast worker` as a process: readiness, drain, crashes, several processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import asyncpg
import click
import psycopg
import pytest

from holdfast.cli import exits
from holdfast.cli.inputs import process_count
from holdfast.database.embedded import EmbeddedServer
from tests.cli.conftest import CommandLine
from tests.cli.processes import SAMPLE, call, gone, running, until
from tests.clusters import Homes
from tests.proxy import Proxy


def worker(cli: CommandLine, *options: str) -> list[str]:
    return ["--database", cli.url, "worker", SAMPLE, *options]


def await_held(directory: Path) -> int:
    """Wait until the step `hold` runs, and return its process's number."""
    (mark,) = until(lambda: list(directory.glob("held-*")) or None, "a step to run")
    return int(mark.name.removeprefix("held-"))


def test_it_says_when_it_is_ready_and_what_it_serves(cli: CommandLine, tmp_path: Path) -> None:
    redis = ("--redis", "redis://127.0.0.1:1/0")  # nobody is there, so it is warned of
    queues = ("--queue", "a", "--queue", "b")
    with running(tmp_path / "log", *redis, *worker(cli, *queues)) as process:
        served = "sample/speak@1, sample/double@1, sample/pack@1"
        text = process.await_text(f"ready: queues a, b, workflows {served}")
        assert "Traceback" not in text
        (ready,) = (line for line in text.splitlines() if " ready: " in line)
        assert ready.endswith(", with Redis")
        assert ready.count("sample/trip@1") == 1
        assert ", flows sample/trip@1" in ready


def test_its_hash_seed_is_fixed(cli: CommandLine, tmp_path: Path) -> None:
    unfixed = {"PYTHONHASHSEED": "random"}
    with running(tmp_path / "log", *worker(cli), env=unfixed) as process:
        process.await_text("ready")
        run = cli.json("start", "hash_seed", "--wait")
        assert run["output"] == "0"


def test_printed_lines_are_written_before_the_worker_ends(cli: CommandLine, tmp_path: Path) -> None:
    with running(tmp_path / "log", *worker(cli)) as process:
        process.await_text("ready")
        cli.start("tell", '"a line of its own"')
        process.await_text("a line of its own")


def test_sigterm_lets_running_steps_end(cli: CommandLine, tmp_path: Path) -> None:
    """S15, trap 26. SIGTERM: a running step gets the grace period, and is recorded."""
    with running(tmp_path / "log", *worker(cli)) as process:
        process.await_text("ready")
        run = cli.start("held", json.dumps(str(tmp_path)))
        await_held(tmp_path)
        process.send(signal.SIGTERM)
        process.await_text("stops: 1 run")
        (tmp_path / "let-go").touch()
        assert process.ended() == exits.OK
    log = cli.json("runs", "show", run)["log"]
    assert [event["type"] for event in log][1] == "StepCompleted"
    assert cli.json("workers") == []


def test_after_the_grace_period_the_rest_is_released(cli: CommandLine, tmp_path: Path) -> None:
    """S15, trap 26. What is not done is released at once, not at the lease's end."""
    with running(tmp_path / "log", *worker(cli, "--grace", "0.1")) as process:
        process.await_text("ready")
        run = cli.start("held", json.dumps(str(tmp_path)))
        await_held(tmp_path)
        process.send(signal.SIGTERM)
        assert process.ended() == exits.OK
    assert cli.state(run) == "queued"


def test_silent_connections_do_not_delay_a_stop(cli: CommandLine, tmp_path: Path) -> None:
    """No reset, no end, no answer on any of them. What is held is given back over new ones."""
    with Proxy(cli.url) as proxy:
        arguments = ["--database", proxy.url, "worker", SAMPLE, "--grace", "0.1"]
        with running(tmp_path / "log", *arguments) as process:
            process.await_text("ready")
            run = cli.start("held", json.dumps(str(tmp_path)))
            await_held(tmp_path)
            proxy.mute()
            process.send(signal.SIGTERM)
            assert process.ended() == exits.OK
    assert cli.state(run) == "queued"
    assert cli.json("workers") == []


def test_sigterm_is_heeded_while_the_start_waits_for_the_database(
    cli: CommandLine, tmp_path: Path
) -> None:
    with psycopg.connect(cli.url) as holder, psycopg.connect(cli.url, autocommit=True) as watcher:
        holder.execute("lock table holdfast.workers in access exclusive mode")
        with running(tmp_path / "log", *worker(cli)) as process:
            waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = "
            until(lambda: watcher.execute(waits + "current_database()").fetchone(), "the wait")
            process.send(signal.SIGTERM)
            assert process.ended() == exits.OK
    assert cli.json("workers") == []


def test_a_second_signal_ends_the_grace_period(cli: CommandLine, tmp_path: Path) -> None:
    """Trap 26. The second signal ends at once, and releases."""
    with running(tmp_path / "log", *worker(cli, "--grace", "1h")) as process:
        process.await_text("ready")
        run = cli.start("held", json.dumps(str(tmp_path)))
        await_held(tmp_path)
        process.send(signal.SIGINT)
        process.await_text("stops: 1 run")
        process.send(signal.SIGINT)
        assert process.ended() == exits.INTERRUPTED
    assert cli.state(run) == "queued"


@pytest.mark.parametrize("workflow", ["held_thread", "held_executor"])
def test_a_thread_that_does_not_end_does_not_delay_a_drained_worker(
    cli: CommandLine, tmp_path: Path, workflow: str
) -> None:
    """Trap 26."""
    with running(tmp_path / "log", *worker(cli, "--grace", "0.1")) as process:
        process.await_text("ready")
        run = cli.start(workflow, json.dumps(str(tmp_path)))
        await_held(tmp_path)
        process.send(signal.SIGTERM)
        assert process.ended() == exits.OK
    assert cli.state(run) == "queued"


def test_it_says_for_which_threads_of_its_code_the_process_waits(
    cli: CommandLine, tmp_path: Path
) -> None:
    with running(tmp_path / "log", *worker(cli, "--grace", "0.1")) as process:
        process.await_text("ready")
        run = cli.start("held_own_thread", json.dumps(str(tmp_path)))
        await_held(tmp_path)
        process.send(signal.SIGTERM)
        process.await_text("waits for 1 thread(s) that its code has started: reports_0")
        assert cli.state(run) == "queued"
        (tmp_path / "let-go").touch()
        assert process.ended() == exits.OK


def test_exhausted_threads_are_shown(cli: CommandLine, tmp_path: Path) -> None:
    with running(tmp_path / "log", *worker(cli, "--threads", "1", "--grace", "0.1")) as process:
        process.await_text("ready")
        first = cli.start("held_thread", json.dumps(str(tmp_path)))
        await_held(tmp_path)
        cli.start("held_thread", json.dumps(str(tmp_path)))
        process.await_text("all 1 threads for steps and activities are in use, by hold_thread")
        until(lambda: "1/1, 1 wait" in cli("workers").stdout or None, "the shortage to be shown")
        assert cli.json("workers")[0]["threads"]["waiting"] == 1
        lines = [each.split() for each in cli("workers").stdout.splitlines()]
        assert lines[0] == ["worker", "queues", "runs", "threads", "up", "heard"]
        assert lines[3][0] == f"{lines[1][0]}:"  # below, what it executes: no narrow column
        assert any("sample/held_thread@1," in each for each in lines[3:])
        assert "1 attempt(s) wait for one" in cli("runs", "why", first).stdout
        (tmp_path / "let-go").touch()


def test_its_log_may_be_json(cli: CommandLine, tmp_path: Path) -> None:
    with running(tmp_path / "log", *worker(cli, "--log-json")) as process:
        process.await_text("ready")
        process.send(signal.SIGTERM)
        assert process.ended() == exits.OK
        lines = [json.loads(line) for line in process.text().splitlines()]
    assert {"at", "level", "logger", "message"} == set(lines[0])
    assert "ready" in lines[0]["message"]


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("nowhere:app", "there is no module nowhere"),
        ("nowhere.py", "there is no file nowhere.py"),
        (f"{SAMPLE}:nothing", "is not an App: name it, as in tests.cli.sample:app"),
    ],
)
def test_an_app_that_cannot_be_found_is_a_usage_error(
    cli: CommandLine, reference: str, says: str
) -> None:
    done = call("--database", cli.url, "worker", reference)
    assert done.returncode == exits.USAGE
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_an_app_whose_code_raises_shows_where(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def go():\n    return 1 / 0\n\ngo()\n")
    done = call("--database", cli.url, "worker", str(tmp_path / "broken.py"))
    assert done.returncode == exits.USAGE
    assert 'broken.py", line 2, in go' in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "importlib" not in done.stderr


OPENED = """
from collections.abc import AsyncIterator
from pathlib import Path
from holdfast import App, Context

app = App("opened")

@app.lifespan
async def used() -> AsyncIterator[str]:
    if Path(__file__).with_name("down").exists():
        raise OSError("the other service is away")
    yield "open"

@app.workflow
async def get(ctx: Context) -> str:
    return used.get()
"""


def test_a_crashed_process_is_replaced_and_its_run_continues(
    cli: CommandLine, tmp_path: Path
) -> None:
    """S12, S15. The lease of a crashed child is reaped at once: its run continues elsewhere."""
    with running(tmp_path / "log", *worker(cli, "--processes", "2")) as process:
        process.await_text("ready", times=2)
        run = cli.json("start", "fatal", json.dumps(str(tmp_path)), "--wait")
        assert run["output"] == "survived"
        assert "WorkerLost" in [
            event["type"] for event in cli.json("runs", "show", run["run_id"])["log"]
        ]
        process.await_text("was killed by SIGKILL; another starts")
        process.await_text("ready", times=3)
        process.send(signal.SIGINT)
        assert process.ended() == exits.INTERRUPTED
    assert cli.json("workers") == []


def test_a_crash_takes_no_run_from_a_worker_elsewhere_with_the_same_process_id(
    cli: CommandLine, tmp_path: Path
) -> None:
    """In containers with one host name, the same process id is the rule."""
    with running(tmp_path / "elsewhere", *worker(cli)) as elsewhere:
        elsewhere.await_text("ready")
        [other] = cli.json("workers")
        run = cli.start("held", json.dumps(str(tmp_path)))
        await_held(tmp_path)
        with running(tmp_path / "log", *worker(cli, "--processes", "2")) as process:
            process.await_text("ready", times=2)
            child = next(
                found for found in cli.json("workers") if found["worker_id"] != other["worker_id"]
            )
            asyncio.run(show_process_id(cli.url, other["worker_id"], child["pid"]))
            os.kill(child["pid"], signal.SIGKILL)
            process.await_text("was killed by SIGKILL; another starts")
            process.await_text("ready", times=3)
            ids = {found["worker_id"] for found in cli.json("workers")}
            assert other["worker_id"] in ids
            assert child["worker_id"] not in ids
            (tmp_path / "let-go").touch()
            cli.await_state(run, "completed")
    shown = cli.json("runs", "show", run)
    assert shown["output"] == 1
    assert "WorkerLost" not in [event["type"] for event in shown["log"]]


async def show_process_id(url: str, worker_id: str, pid: int) -> None:
    """Let a worker's row have another process id from now on, whatever the worker says."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            f"""
            create function public.as_elsewhere() returns trigger language plpgsql as
            'begin new.pid := {pid}; return new; end';
            create trigger as_elsewhere before insert or update on holdfast.workers
            for each row when (new.worker_id = '{worker_id}')
            execute function public.as_elsewhere();
            update holdfast.workers set pid = pid;
            """
        )
    finally:
        await connection.close()


def test_children_end_when_their_supervisor_is_killed(cli: CommandLine, tmp_path: Path) -> None:
    with running(tmp_path / "log", *worker(cli, "--processes", "2")) as process:
        process.await_text("ready", times=2)
        children = [found["pid"] for found in cli.json("workers")]
        assert len(children) == 2
        process.popen.kill()
        for child in children:
            until(lambda child=child: gone(child), f"process {child} to end")
    assert cli.json("workers") == []


def test_auto_starts_a_process_for_each_processor_that_may_be_used(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(os.sched_getaffinity(0))
    with running(tmp_path / "log", *worker(cli, "--processes", "auto")) as process:
        process.await_text("ready", times=count)
        assert len(cli.json("workers")) == count

    def some(process: int) -> set[int]:
        return {0, 2, 5}

    monkeypatch.setattr(os, "sched_getaffinity", some)
    assert process_count("auto") == 3
    assert process_count("1000") == 1_000


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", ""])
def test_another_number_of_processes_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a number from 1 on, and not auto"):
        process_count(text)


@pytest.mark.parametrize("text", ["1001", "9" * 20, "9" * 5000])
def test_more_processes_than_a_machine_can_keep_are_refused(text: str) -> None:
    """The command took all memory of the machine to prepare them, before the first one started."""
    with pytest.raises(click.BadParameter, match="keeps at most 1,000 processes"):
        process_count(text)


def test_processes_that_cannot_load_the_app_are_not_started_again(
    cli: CommandLine, tmp_path: Path
) -> None:
    with running(
        tmp_path / "log", "--database", cli.url, "worker", "nowhere:app", "--processes", "2"
    ) as process:
        assert process.ended() == exits.USAGE


def test_a_replacement_that_cannot_open_a_lifespan_is_tried_again(
    cli: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(OPENED)
    started = ("worker", str(tmp_path / "app.py"), "--processes", "2")
    with running(tmp_path / "log", "--database", cli.url, *started) as process:
        process.await_text("ready", times=2)
        lost, kept = (found["pid"] for found in cli.json("workers"))
        (tmp_path / "down").touch()
        os.kill(lost, signal.SIGKILL)
        process.await_text("cannot be opened", times=2)
        process.await_text("ended with code 2; another starts", times=2)
        (tmp_path / "down").unlink()
        process.await_text("ready", times=3)
        assert kept in [found["pid"] for found in cli.json("workers")]
        process.send(signal.SIGTERM)
        assert process.ended() == exits.OK


def test_processes_that_cannot_open_a_lifespan_are_not_started_again(
    cli: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(OPENED)
    (tmp_path / "down").touch()
    started = ("worker", str(tmp_path / "app.py"), "--processes", "2")
    with running(tmp_path / "log", "--database", cli.url, *started) as process:
        assert process.ended() == exits.USAGE


def test_the_embedded_server_is_restarted_when_it_dies(tmp_path: Path, homes: Homes) -> None:
    """Trap 22. The embedded postmaster is killed; the worker starts it again and continues."""
    home = str(homes.make(tmp_path / "home"))
    with running(tmp_path / "log", "--data", home, "worker", SAMPLE) as process:
        process.await_text("ready")
        with EmbeddedServer.acquire(Path(home)) as server:
            pid = server.postmaster_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            until(lambda: server.postmaster_pid not in (None, pid) or None, "a new postmaster")
        done = call("--data", home, "start", "double", "21", "--wait")
        assert (done.stdout, done.returncode) == ("42\n", exits.OK)
        process.send(signal.SIGTERM)
        assert process.ended() == exits.OK
        assert server.postmaster_pid is None
        assert "Traceback" not in process.text()
