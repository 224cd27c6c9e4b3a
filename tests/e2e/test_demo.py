"""`holdfast demo`: a killed worker loses nothing, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli import exits
from holdfast.demo.ledger import Entry, Ledger
from holdfast.demo.proof import prove
from holdfast.types import Event

pytestmark = [pytest.mark.slow, pytest.mark.crash]


COMMAND = [sys.executable, "-m", "holdfast", "demo"]


def environment(temporary: Path) -> dict[str, str]:
    dropped = ("DATABASE_URL", "HOLDFAST_DATABASE_URL", "HOLDFAST_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {"TMPDIR": str(temporary)}


def demo(temporary: Path) -> str:
    """Run the demo without a terminal, with a temporary directory of its own."""
    done = subprocess.run(
        COMMAND,
        env=environment(temporary),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def processes_in(directory: Path) -> list[str]:
    """Return the command lines of live processes that name or work in a directory."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            place = os.readlink(entry / "cwd")
        except OSError:
            continue
        if str(directory) in line or place.startswith(str(directory)):
            found.append(line)
    return found


def test_the_demo_recovers_from_the_kill_and_leaves_nothing_twice(tmp_path: Path) -> None:
    for _ in range(2):
        shown = demo(tmp_path)
        assert "SIGKILL: the worker dies while it packs pack" in shown
        assert "☠ worker lost" in shown
        assert "every effect happened once, as recorded" in shown
        assert "cut off by the kill" in shown
        assert list(tmp_path.iterdir()) == []
        assert processes_in(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_ended_early_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        COMMAND,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert any("is started" in line for line in process.stdout)
        process.send_signal(number)
        process.stdout.read()
        assert process.wait(60) == exits.INTERRUPTED
    assert list(tmp_path.iterdir()) == []
    assert processes_in(tmp_path) == []


def log(*steps: tuple[str, str]) -> list[Event]:
    return [Event("StepCompleted", step, f'{{"result":"{receipt}"}}', 1) for step, receipt in steps]


def entry(kind: str, step: str, receipt: str = "") -> Entry:
    assert kind in ("asked", "happened")
    return Entry("asked" if kind == "asked" else "happened", step, f"run/{step}", 1, receipt)


def test_the_proof_counts_interrupted_attempts() -> None:
    ledger = [entry("asked", "a"), entry("asked", "a"), entry("happened", "a", "r")]
    (proof,) = prove(log(("a", "r")), ledger)
    assert proof.holds
    assert proof.interrupted == 1


@pytest.mark.parametrize(
    ("events", "ledger"),
    [
        (log(("a", "r")), [entry("asked", "a")]),
        (log(), [entry("asked", "a"), entry("happened", "a", "r")]),
        (log(("a", "r"), ("a", "r")), [entry("asked", "a"), entry("happened", "a", "r")]),
        (log(("a", "x")), [entry("asked", "a"), entry("happened", "a", "r")]),
        (log(("a", "r")), [entry("happened", "a", "r"), entry("happened", "a", "r")]),
    ],
    ids=["never happened", "never recorded", "recorded twice", "another result", "happened twice"],
)
def test_the_proof_fails_where_log_and_world_differ(
    events: list[Event], ledger: list[Entry]
) -> None:
    assert not all(proof.holds for proof in prove(events, ledger))


def test_the_ledger_acts_once_for_an_id(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.ask("charge", "run/charge")
    ledger.ask("charge", "run/charge")
    assert ledger.act("charge", "run/charge") == ledger.act("charge", "run/charge")
    assert [each.kind for each in ledger.entries()] == ["asked", "asked", "happened"]
