"""The examples, run as a reader runs them: with real input, on an embedded database of their own.

Nothing is left running: neither a worker nor the database.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from holdfast.database.embedded import EmbeddedServer
from tests.cli.forks import forked_programs
from tests.cli.processes import call
from tests.clusters import Homes

ROOT = Path(__file__).parents[2]
TEXTS = ROOT / "examples" / "texts"
DEADLINE_SECONDS = 120.0

pytestmark = pytest.mark.slow


class Desk:
    """A folder to work in, with a data home of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.home = directory, directory / "home"
        ours = {"HOLDFAST_HOME": str(self.home), "PYTHONUNBUFFERED": "1"}
        self.environment = {**os.environ, **ours}
        for name in ("HOLDFAST_DATABASE_URL", "DATABASE_URL"):
            self.environment.pop(name, None)

    @contextmanager
    def running(self, example: str, *arguments: str) -> Generator[subprocess.Popen[str]]:
        """Run an example for the length of the block, at most."""
        command = [sys.executable, str(ROOT / "examples" / example), *arguments]
        with subprocess.Popen(
            command,
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, example: str, *arguments: str, typed: str = "") -> str:
        """Run an example to its end, and return what it wrote."""
        with self.running(example, *arguments) as process:
            output, _ = process.communicate(typed, timeout=DEADLINE_SECONDS)
        assert process.returncode == 0, output
        return output

    def log(self, run: str) -> list[dict[str, object]]:
        """Return a run's log, as the command line gives it."""
        lines = self.command("runs", "log", run, "--json").splitlines()
        return [json.loads(line) for line in lines]

    def command(self, *arguments: str) -> str:
        """Run a command to its end, and return what it wrote to stdout."""
        answer = call(*arguments, env={"HOLDFAST_HOME": str(self.home)})
        assert answer.returncode == 0, answer.stderr
        return answer.stdout


@pytest.fixture(scope="module", autouse=True)
def programs() -> Iterator[None]:
    """The examples are forks of a process that has imported what they import."""
    with forked_programs("holdfast.agents.pydantic_ai", "pydantic_ai.models.function"):
        yield


@pytest.fixture
def new_desk(tmp_path: Path) -> Iterator[Desk]:
    """A desk at which nobody has worked before."""
    desk = Desk(tmp_path)
    yield desk
    until(lambda: not servers(desk.home), "the embedded database has stopped")


@pytest.fixture
def desk(new_desk: Desk, homes: Homes) -> Desk:
    """A desk with a database that has been used before."""
    homes.make(new_desk.home)
    return new_desk


def servers(home: Path) -> list[int]:
    """Return the processes that keep their data below a home."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(home) in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def until(fact: Callable[[], bool], what: str) -> None:
    """Wait until something is so."""
    give_up_at = time.monotonic() + DEADLINE_SECONDS
    while not fact():
        assert time.monotonic() < give_up_at, f"it is still not so: {what}"
        time.sleep(0.02)


def read_until(process: subprocess.Popen[str], pattern: str, times: int = 1) -> list[str]:
    """Read lines until so many of them match."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.strip())
        times -= re.search(pattern, line) is not None
        if times == 0:
            return lines
    raise AssertionError(f"it ended without {pattern!r}: {lines}")


def kill(process: subprocess.Popen[str]) -> list[str]:
    """Kill a program, and return the lines that it still wrote before the signal came."""
    process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    lines = [line.strip() for line in process.stdout]
    process.wait()
    return lines


def words_of(path: Path) -> int:
    return len(re.findall(r"[\w']+", path.read_text(encoding="utf-8").lower()))


def test_wordcount_counts_the_words_of_each_file(new_desk: Desk) -> None:
    output = new_desk.run("wordcount.py", str(TEXTS))
    for path in TEXTS.glob("*.txt"):
        assert re.search(rf"^ +{words_of(path)} +\d+  {path.name} \(", output, re.MULTILINE)
    total = sum(words_of(path) for path in TEXTS.glob("*.txt"))
    assert f"{total} words in {len(list(TEXTS.glob('*.txt')))} files" in output


def test_wordcount_killed_in_the_middle_reads_no_counted_file_again(desk: Desk) -> None:
    """S6. B1. A worker killed with SIGKILL: what the log has is used, the rest is done."""
    folder = desk.directory / "texts"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02}.txt").write_text("word " * (number + 1), encoding="utf-8")

    with desk.running("wordcount.py", str(folder), "--slow") as process:
        first = read_until(process, "^reading", times=6) + kill(process)
    [run] = [line.removeprefix("started ") for line in first if line.startswith("started ")]
    recorded = [entry for entry in desk.log(run) if entry["type"] == "StepCompleted"]
    counted = {entry["key"] for entry in recorded}
    assert 4 <= len(recorded) - 1 < 12, "the listing and some of the files, not all"

    second = desk.run("wordcount.py", str(folder), "--slow")
    assert f"continuing {run}" in second.splitlines()  # the worker may print before it
    assert "78 words in 12 files" in second
    reads = Counter(re.findall(r"reading \S*/(\d\d)\.txt", "\n".join([*first, second])))
    assert set(reads) == {f"{number:02}" for number in range(12)}
    again = {name for name, times in reads.items() if times > 1}
    assert len(again) <= 12 - (len(counted) - 1), "only what was not recorded is read again"
    keys = Counter(e["key"] for e in desk.log(run) if e["type"] == "StepCompleted")
    assert set(keys.values()) == {1}
    assert len(keys) == 13


def test_an_expense_waits_for_a_decision(desk: Desk) -> None:
    with desk.running("approval.py", "train ticket", "89.90") as waiting:
        read_until(waiting, "please decide: train ticket, 89.90")
        decided = desk.run("approval.py", "train ticket", "89.90", "--decide", "yes", "--by", "ann")
        output, _ = waiting.communicate(timeout=DEADLINE_SECONDS)
    number = re.search(r"approved by ann, booked as (B-[0-9A-F]{6})", output)
    assert number is not None, output
    assert number[1] in decided, "both terminals see the same booking"


def test_an_expense_that_is_refused_is_not_paid(desk: Desk) -> None:
    output = desk.run("approval.py", "yacht", "1000000", "--decide", "no", "--by", "bob")
    assert "refused by bob" in output
    assert "booked" not in output


def test_a_backup_is_a_verified_copy_and_is_made_once(desk: Desk) -> None:
    target = desk.directory / "copies"
    first = desk.run("backup.py", str(TEXTS), str(target))
    for path in TEXTS.iterdir():
        assert (target / path.name).read_bytes() == path.read_bytes()
    assert f"{len(list(TEXTS.iterdir()))} files" in first
    (target / "letter.txt").unlink()
    assert desk.run("backup.py", str(TEXTS), str(target)) == first
    assert not (target / "letter.txt").exists(), "the same run: nothing is copied again"


def test_a_killed_backup_that_is_cancelled_leaves_no_copies(desk: Desk) -> None:
    """Trap 16. The worker is gone when the cancel comes; the next one cleans up."""
    source, target = desk.directory / "source", desk.directory / "copies"
    source.mkdir()
    for number in range(400):
        (source / f"{number}.bin").write_bytes(os.urandom(100_000))
    with desk.running("backup.py", str(source), str(target)) as process:
        until(lambda: target.is_dir() and any(target.glob("*.bin")), "one is copied")
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert list(target.glob("*.bin"))
    assert desk.run("backup.py", str(source), str(target), "--cancel").endswith(
        "cancelled, copies removed\n"
    )
    assert list(target.glob("*.bin")) == []


def test_an_agent_killed_midway_pays_and_refunds_once(desk: Desk) -> None:
    arguments = ("agent.py", "my lamp is broken", "order-17")
    with desk.running(*arguments) as process:
        first = read_until(process, "^request 2") + kill(process)
    second = desk.run(*arguments, "--decide", "yes")
    assert "I have looked: order-17 is refunded." in second
    lines = [*first, *second.splitlines()]
    assert lines.count("request 1 to the model") == 1, "it was recorded before the second"
    assert lines.count("request 2 to the model") <= 2, "it was not recorded at the kill"
    assert lines.count("request 3 to the model") == 1
    assert sum(line.startswith("refund of order-17") for line in lines) == 1


def test_an_agent_whose_refund_is_rejected_refunds_nothing(desk: Desk) -> None:
    output = desk.run("agent.py", "my lamp is broken", "order-17", "--decide", "no")
    assert "refund of" not in output
    assert "I have looked: The tool call was denied" in output


def test_an_agent_stops_at_its_budget(desk: Desk) -> None:
    output = desk.run("agent.py", "my lamp is broken", "order-17", "--budget", "70")
    assert "The budget of 70 tokens is spent" in output
    assert "request 3" not in output


def manuscripts(folder: Path, count: int) -> None:
    """Write Markdown files, one of which is not text."""
    folder.mkdir()
    for number in range(count):
        text = f"# Nº {number}\n\nA *fine* one, & `short`.\n\n- one\n- two\n"
        (folder / f"{number:02}.md").write_text(text, encoding="utf-8")
    (folder / "photo.txt").write_bytes(b"\xff\xfe\x00no text")


def test_documents_are_converted_and_written_once_they_are_approved(desk: Desk) -> None:
    folder, output = desk.directory / "folder", desk.directory / "output"
    manuscripts(folder, 3)
    with desk.running("convert.py", str(folder), str(output)) as process:
        lines = read_until(process, "^Write 3 pages")
        assert not output.exists(), "nothing is written before the approval"
        rest, _ = process.communicate("Fine & short\n", timeout=DEADLINE_SECONDS)
    assert "approved by you: 4 files written" in rest
    assert "not converted: photo.txt: " in rest
    assert sorted(path.name for path in output.iterdir()) == [
        "00.md.html",
        "01.md.html",
        "02.md.html",
        "index.html",
    ]
    page = (output / "02.md.html").read_text(encoding="utf-8")
    assert "<h1>Nº 2</h1>" in page
    assert "<em>fine</em> one, &amp; <code>short</code>" in page
    assert "<li>two</li>" in page
    index = (output / "index.html").read_text(encoding="utf-8")
    assert "<h1>Fine &amp; short</h1>" in index
    assert '<a href="02.md.html">Nº 2</a>' in index
    [run] = [line.removeprefix("started ") for line in lines if line.startswith("started ")]
    assert desk.command("runs", "show", run).count("convert_document@1") == 4


def test_documents_that_are_refused_are_not_written(desk: Desk) -> None:
    output = desk.directory / "output"
    assert "refused by you: 0 files" in desk.run(
        "convert.py", str(TEXTS), str(output), typed="no\n"
    )
    assert not output.exists()


CONVERTED = """
    select true from holdfast.runs where name like '%convert_document' and status = 'completed'
"""


def test_a_killed_conversion_continues_and_another_person_decides(desk: Desk) -> None:
    """S7. What an activity has done is not done again; the decision comes from elsewhere."""
    folder, output = desk.directory / "folder", desk.directory / "output"
    manuscripts(folder, 20)
    arguments = ("convert.py", str(folder), str(output), "--slow")
    with desk.running(*arguments) as process:
        first = read_until(process, "^converting", times=4)
        with EmbeddedServer.acquire(desk.home) as server:
            with psycopg.connect(server.url, autocommit=True) as connection:
                until(lambda: bool(connection.execute(CONVERTED).fetchone()), "one is recorded")
            first += kill(process)
    [run] = [line.removeprefix("started ") for line in first if line.startswith("started ")]
    listing = ("runs", "list", "--workflow", "convert_document", "--json", "--payloads")
    listed = desk.command(*listing)
    done = {each["input"]["name"] for each in json.loads(listed)["runs"] if each["output"]}
    assert 1 <= len(done) < 20, "some of the documents, not all"

    with desk.running(*arguments) as process:
        second = read_until(process, "^Write 20 pages")
        desk.command("approvals", "decide", run, "--approve", "--by", "ann")
        rest, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert f"continuing {run}" in second  # the worker may print before it
    assert "approved by ann: 21 files written" in rest
    converted = Counter(re.findall(r"converting (\S+)", "\n".join(first + second)))
    assert set(converted) == {*(f"{number:02}.md" for number in range(20)), "photo.txt"}
    assert {converted[name] for name in done} == {1}, "what was recorded is not converted again"
    assert sum(entry["type"] == "ApprovalResolved" for entry in desk.log(run)) == 1


def test_a_folder_is_catalogued_with_its_duplicates(desk: Desk) -> None:
    folder, report = desk.directory / "folder", desk.directory / "report.md"
    folder.mkdir()
    for name, text in {"a.txt": "one\n", "b.txt": "one\n", "c.md": "two\nlines\n"}.items():
        (folder / name).write_text(text, encoding="utf-8")
    output = desk.run("catalogue.py", str(folder), str(report))
    assert report.read_text(encoding="utf-8") in output
    assert "| .txt | 2 | 8 | 2 |" in output
    assert "| .md | 1 | 10 | 2 |" in output
    assert "a.txt = b.txt" in output


def test_a_killed_catalogue_reads_no_described_file_again(desk: Desk) -> None:
    """P5. Elements of a map that have their results keep them.

    At the 120th file the results of the first have long been recorded.
    """
    folder, report = desk.directory / "folder", desk.directory / "report.md"
    folder.mkdir()
    for number in range(160):
        (folder / f"{number:03}.txt").write_text("word\n" * number, encoding="utf-8")
    with desk.running("catalogue.py", str(folder), str(report), "--slow") as process:
        first = read_until(process, "^reading", times=120) + kill(process)
    [run] = [line.removeprefix("started ") for line in first if line.startswith("started ")]
    steps = json.loads(desk.command("runs", "show", run, "--json"))["steps"]
    [described] = [step for step in steps if step["step"] == "described"]
    done = described["done"]
    assert described["tasks"] == 160
    assert 0 < done < 160, "some of the files, not all"

    second = desk.run("catalogue.py", str(folder), str(report), "--slow")
    assert f"continuing {run}" in second.splitlines()  # the worker may print before it
    assert "| .txt | 160 |" in second
    reads = Counter(re.findall(r"reading \S*/(\d\d\d)\.txt", "\n".join([*first, second])))
    assert set(reads) == {f"{number:03}" for number in range(160)}
    assert sum(times > 1 for times in reads.values()) <= 160 - done


def test_a_killed_statement_has_each_line_in_its_account_once_and_in_its_order(desk: Desk) -> None:
    """B13, B14. Messages that were in flight come again; what was booked is not booked again."""
    statement, folder = desk.directory / "statement.csv", desk.directory / "sorted"
    rows = [(f"acc-{number % 3}", number) for number in range(90)]
    lines = "".join(f"{account},{number}\n" for account, number in rows)
    statement.write_text(f"account,cents\n{lines}", encoding="utf-8")
    with desk.running("accounts.py", str(statement), str(folder), "--slow") as process:
        first = read_until(process, "^booking", times=2) + kill(process)
    [run] = [line.removeprefix("started ") for line in first if line.startswith("started ")]

    second = desk.run("accounts.py", str(statement), str(folder), "--slow")
    assert f"continuing {run}" in second.splitlines()
    for account in ("acc-0", "acc-1", "acc-2"):
        assert f"      30 lines  {account}.csv" in second
        booked = (folder / f"{account}.csv").read_text(encoding="utf-8")
        assert booked == "".join(f"{of},{number}\n" for of, number in rows if of == account)
    repeated = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "accounts.py"), __file__, str(folder)],
        capture_output=True,
        text=True,
        env=desk.environment,
    )
    assert "has no column `account`" in repeated.stderr


def test_a_session_that_is_killed_answers_each_message_once(desk: Desk) -> None:
    bought = ("session.py", "ann", "I have bought a lamp", "--id", "first")
    with desk.running(*bought) as process:
        assert process.stdout is not None
        assert "request with 1 messages" in process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert "you have bought: lamp" in desk.run(*bought)
    assert desk.run(*bought) == "you have bought: lamp\n"  # the model is not asked again
    told = desk.run("session.py", "ann", "what have I bought?", "--show")
    assert told.count("user: I have bought a lamp") == 1
    assert told.count("assistant: you have bought: lamp") == 2


def test_the_embedded_core_continues_from_a_log_in_sqlite(desk: Desk) -> None:
    """T2. Three processes, one log; the step runs once."""
    first = desk.run("embedded_core.py", "orders.db", "start", "7")
    charging, waiting = first.splitlines()
    assert charging == "charging order 7"
    run, _, _ = waiting.partition(" waits for packed")
    assert desk.run("embedded_core.py", "orders.db", "packed", run) == (
        f'{run} completed: "receipt-7, parcel 1"\n'
    )
    assert desk.run("embedded_core.py", "orders.db", "packed", run) == (
        f"{run} has ended (WorkflowCompleted) and accepts nothing more\n"
    )
    log = desk.run("embedded_core.py", "orders.db", "log", run).splitlines()
    types = [line.split()[1] for line in log]
    assert types == ["WorkflowStarted", "StepCompleted", "SignalReceived", "WorkflowCompleted"]
