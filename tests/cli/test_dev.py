"""`holdfast dev`: the embedded database, a worker, reload on change, nothing left behind."""

from __future__ import annotations

import os
import pty
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast.cli import exits
from holdfast.database.embedded.processes import live_pid
from tests.cli.processes import Process, call, gone, running, save, until
from tests.clusters import Homes

APP = """
from holdfast import App, Context

app = App("draft")

@app.workflow
async def answer(ctx: Context) -> int:
    return {answer}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "draft.py").write_text(APP.format(answer=1))
    return place


@pytest.fixture
def dev(folder: Path, tmp_path: Path, homes: Homes) -> Iterator[Process]:
    homes.make(tmp_path / "home")
    arguments = ["--data", str(tmp_path / "home"), "dev", "draft.py"]
    with running(tmp_path / "log", *arguments, cwd=folder) as process:
        process.await_text("ready: queues default, workflows draft/answer@1")
        yield process


def answer(home: Path) -> str:
    return call("--data", str(home), "start", "answer", "null", "--wait").stdout.strip()


def test_a_change_restarts_the_worker_with_the_new_code(
    dev: Process, folder: Path, tmp_path: Path
) -> None:
    assert answer(tmp_path / "home") == "1"
    save(folder / "draft.py", APP.format(answer=2))
    dev.await_text("draft.py changed")
    dev.await_text("ready", times=2)
    assert answer(tmp_path / "home") == "2"


def test_an_import_error_is_shown_and_the_next_change_can_fix_it(
    dev: Process, folder: Path, tmp_path: Path
) -> None:
    save(folder / "draft.py", "import nothing_of_this_name\n")
    text = dev.await_text("waiting for the next change")
    assert "No module named 'nothing_of_this_name'" in text
    save(folder / "draft.py", APP.format(answer=3))
    dev.await_text("ready", times=2)
    assert answer(tmp_path / "home") == "3"


def test_ctrl_c_leaves_no_process_and_no_server(dev: Process, tmp_path: Path) -> None:
    (worker,) = until(lambda: children_of(dev.pid) or None, "the worker process")
    dev.send(signal.SIGINT)
    assert dev.ended() == exits.INTERRUPTED
    assert gone(worker)
    assert live_pid(tmp_path / "home" / "postgres") is None


def test_it_says_where_the_database_is_and_how_to_start_a_run(dev: Process, tmp_path: Path) -> None:
    text = dev.text()
    assert f"the embedded database in {tmp_path / 'home'}" in text
    assert f"holdfast --data {tmp_path / 'home'} start WORKFLOW" in text


def test_a_crashed_worker_is_replaced(dev: Process, tmp_path: Path) -> None:
    (worker,) = until(lambda: children_of(dev.pid) or None, "the worker process")
    os.kill(worker, signal.SIGKILL)
    dev.await_text("was killed by SIGKILL; another starts")
    dev.await_text("ready", times=2)
    assert answer(tmp_path / "home") == "1"


def test_a_file_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    done = call("--data", str(tmp_path / "home"), "dev", str(tmp_path / "nowhere.py"))
    assert done.returncode == exits.USAGE
    assert not (tmp_path / "home").exists()


def test_code_that_cannot_be_loaded_has_no_dashboard(
    folder: Path, tmp_path: Path, homes: Homes
) -> None:
    """Its link would lead nowhere: the command ends with the error."""
    (folder / "draft.py").write_text("import nothing_of_this_name\n")
    home = homes.make(tmp_path / "home")
    done = call("--data", str(home), "dev", str(folder / "draft.py"))
    assert done.returncode == exits.USAGE
    assert "No module named 'nothing_of_this_name'" in done.stderr
    assert "login?key=" not in done.stderr


def test_a_misspelled_app_is_a_usage_error(folder: Path, tmp_path: Path, homes: Homes) -> None:
    home = homes.make(tmp_path / "home")
    done = call("--data", str(home), "dev", f"{folder / 'draft.py'}:drfat")
    assert done.returncode == exits.USAGE
    assert "is not an App: name it, as in draft:app" in done.stderr
    assert live_pid(tmp_path / "home" / "postgres") is None


def children_of(pid: int) -> list[int]:
    """Return the children that have a session of their own, as workers do."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in map(int, listed) if os.getsid(child) == child]


DEBUGGED = """
from holdfast import App, Context

app = App("draft")

@app.step
async def double(number: int) -> int:
    breakpoint()
    return number * 2

@app.step
def halve(number: int) -> int:
    breakpoint()
    return number // 2

@app.workflow
async def answer(ctx: Context, number: int) -> int:
    breakpoint()
    return await double(number) + await halve(number)
"""


def test_ctrl_c_ends_a_worker_at_a_debuggers_prompt(
    folder: Path, tmp_path: Path, homes: Homes
) -> None:
    """Soon after its grace period, and by itself: its runs are given back, it is not killed."""
    (folder / "draft.py").write_text(DEBUGGED)
    home = ["--data", str(homes.make(tmp_path / "home"))]
    ours, theirs = pty.openpty()
    with running(tmp_path / "log", *home, "dev", "draft.py", cwd=folder, stdin=theirs) as dev:
        os.close(theirs)
        dev.await_text("ready: queues default")
        call(*home, "start", "answer", "10")
        dev.await_text("(Pdb) ")
        dev.send(signal.SIGINT)
        assert dev.ended() == exits.INTERRUPTED
        assert "asked to stop, and the event loop is held" in dev.text()
        assert "killed" not in dev.text()
    os.close(ours)


def test_breakpoint_opens_the_debugger_on_the_terminal(
    folder: Path, tmp_path: Path, homes: Homes
) -> None:
    """In the workflow, in an async step, in one that runs in a thread, and in the replay."""
    (folder / "draft.py").write_text(DEBUGGED)
    home = ["--data", str(homes.make(tmp_path / "home"))]
    ours, theirs = pty.openpty()
    with running(tmp_path / "log", *home, "dev", "draft.py", cwd=folder, stdin=theirs) as dev:
        os.close(theirs)
        dev.await_text("ready: queues default")
        run = call(*home, "start", "answer", "10").stdout.strip()
        for prompts, line in enumerate((b"p number * 77\n", *[b"c\n"] * 4), start=1):
            dev.await_text("(Pdb) ", times=prompts)
            os.write(ours, line)
        assert call(*home, "runs", "wait", run, "--timeout", "30s").stdout.strip() == "25"
        assert "770\n" in dev.text()
        dev.send(signal.SIGINT)
        assert dev.ended() == exits.INTERRUPTED
    os.close(ours)


def test_its_link_opens_the_dashboard_and_a_second_one_takes_the_next_port(
    dev: Process, folder: Path, tmp_path: Path, homes: Homes
) -> None:
    """Edge case 40. Ctrl-C ends it while a page follows a stream."""
    link = re.search(r"http://127\.0\.0\.1:(\d+)/login\?key=\S+", dev.await_text("dashboard:"))
    assert link is not None
    with httpx.Client(follow_redirects=True, timeout=60) as browser:
        assert browser.get(link[0]).status_code == 200
        site = f"http://127.0.0.1:{link[1]}"
        form = browser.get(f"{site}/workflow?name=draft/answer").text
        ids = dict(re.findall(r'name="(name|run_id)" value="([^"]+)"', form))
        headers = {"Sec-Fetch-Site": "same-origin"}
        started = browser.post(f"{site}/workflows/start", data=ids, headers=headers)
        assert started.status_code == 200
        assert browser.get(site + "/runs").status_code == 200
        key = {"Authorization": f"Bearer {link[0].rpartition('=')[2]}"}
        runs = f"{site}/v1/workflows/answer/runs"
        wrong = browser.post(runs, json={"input": 7}, headers=key)  # a cookie is sent, too
        assert wrong.status_code == 403
        browser.cookies.clear()
        wrong = browser.post(runs, json={"input": 7}, headers=key)
        assert wrong.status_code == 422
        assert "Expected null, got integer - at `$`" in wrong.json()["detail"]
        with browser.stream("GET", f"{site}/?live=1") as stream:
            next(stream.iter_text())
            other = ["--data", str(homes.make(tmp_path / "other")), "dev", "draft.py"]
            with running(tmp_path / "log2", *other, "--port", link[1], cwd=folder) as second:
                second.await_text("ready: queues default")
                assert f"port {link[1]} is taken: the dashboard is at " in second.text()
                second.send(signal.SIGINT)
                assert second.ended() == exits.INTERRUPTED
            dev.send(signal.SIGINT)
            assert dev.ended() == exits.INTERRUPTED


WAITING = """
import asyncio

from holdfast import App, Context

app = App("draft")

@app.step
async def double(number: int) -> int:
    return number * 2

@app.workflow
async def answer(ctx: Context, number: int) -> int:
    print("not an entry of the log")
    twice = await double(number)
    async with asyncio.timeout(86_400):
        return twice + await ctx.wait_for_signal("more", type=int)  # waits here
"""


def test_a_run_has_the_lines_of_its_code_beside_its_log(
    folder: Path, tmp_path: Path, homes: Homes
) -> None:
    """And why changed code cannot follow the log."""
    (folder / "draft.py").write_text(WAITING)
    home = ["--data", str(homes.make(tmp_path / "home"))]
    with running(tmp_path / "log", *home, "dev", "draft.py", "--port", "0", cwd=folder) as dev:
        link = re.search(r"(http://127\S+)/login\?key=\S+", dev.await_text("dashboard:"))
        assert link is not None
        run = call(*home, "start", "answer", "10").stdout.strip()
        with httpx.Client(follow_redirects=True, timeout=60) as browser:
            assert browser.get(link[0]).status_code == 200
            at = f"{link[1]}/runs/{run}?tab=code"
            text = until(
                lambda: shown if "waits here" in (shown := browser.get(at).text) else None,
                "the line at which the run waits",
            )
            rows = re.findall(
                r'<tr id="c-(\d+)">.*?<td>(\w+)</td>.*?<code>(.*?)</code>', text, re.S
            )
            assert rows[:2] == [
                ("0", "WorkflowStarted", "twice = await double(number)"),
                ("1", "StepCompleted", rows[-1][2]),
            ]
            assert "draft.py:17 in answer" in text
            save(folder / "draft.py", WAITING.replace("await double(number)", "number"))
            dev.await_text("ready", times=2)
            changed = browser.get(at).text
            assert 'class="notice bad"' in changed
            assert "double" in changed
