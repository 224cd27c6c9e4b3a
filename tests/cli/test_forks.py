"""Forks in place of new processes: what a command sees, and how its end is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from tests.cli.forks import fork, forked_programs
from tests.cli.processes import PATIENCE_SECONDS, Popen, command, environment, gone, until

PROBE = """
import gc, json, os, signal, sys, threading, time
from holdfast import App

app = App("probe")
streams = sys.stdin, sys.stdout, sys.stderr
seen = {
    "arguments": (sys.argv[1:], sys.orig_argv, sys.executable, sys.flags.hash_randomization),
    "main": sys.modules["__main__"].__spec__.name,
    "path": sys.path,
    "environment": {name: os.environ[name] for name in os.environ if name not in ("_", "SEEN")},
    "zone": time.tzname,
    "place": (os.getcwd(), os.getsid(0) == os.getpid(), os.umask(0o22)),
    "signals": [str(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "descriptors": [name for name in os.listdir("/proc/self/fd") if int(name) < 8],
    "threads": (threading.active_count(), len(os.listdir("/proc/self/task"))),
    "collector": (gc.get_threshold(), gc.isenabled()),
    "streams": [(s.encoding, s.errors, s.mode, s.line_buffering, s.isatty()) for s in streams],
    "standard": (sys.__stdin__, sys.__stdout__, sys.__stderr__) == streams,
    "input": sys.stdin.read(),
    "strings": hash("a set of texts"),
}
with open(os.environ["SEEN"], "w") as file:
    json.dump(seen, file)
print("said")
print("complained", file=sys.stderr)
"""


Start = Callable[[list[str], Mapping[str, str], list[int], Path], Popen | None]


def a_new_process(
    arguments: list[str], env: Mapping[str, str], streams: list[int], cwd: Path
) -> Popen:
    stdin, stdout, stderr = streams
    env = {"PYTHONHASHSEED": "0", **env}
    return subprocess.Popen(
        command(*arguments), env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr
    )


def seen_by(start: Start, folder: Path, *arguments: str) -> object:
    """Return what a command sees that loads the probe, what it writes, and how it ends."""
    env = environment({"SEEN": str(folder / "seen"), "NAMED": "é", "TZ": "Asia/Kolkata"})
    env.pop("HOME")
    with ExitStack() as stack:
        files = [stack.enter_context((folder / name).open("w+")) for name in ("in", "out", "err")]
        files[0].write("given")
        files[0].seek(0)
        popen = start(list(arguments), env, [file.fileno() for file in files], folder)
        assert popen is not None
        code = popen.wait(PATIENCE_SECONDS)
    said = [(folder / name).read_text() for name in ("out", "err")]
    return code, said, json.loads((folder / "seen").read_text())


@pytest.mark.parametrize("arguments", [["check"], ["worker", "--database", "nowhere"]], ids=str)
def test_a_command_sees_what_it_sees_in_a_new_process(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    forked = seen_by(fork, tmp_path, *arguments, "probe.py")
    (tmp_path / "seen").unlink()
    assert forked == seen_by(a_new_process, tmp_path, *arguments, "probe.py")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_file_sees_what_it_sees_in_a_new_process(tmp_path: Path, unbuffered: str) -> None:
    """And it is a child of this process, which hears of its end."""
    (tmp_path / "code").mkdir()
    file = tmp_path / "code" / "probe.py"
    more = '"written": sys.stdout.write_through, "parent": os.getppid(), "file": __file__,\n    '
    probe = PROBE.replace('"threads":', f'{more}"threads":').replace(".__spec__.name", ".__name__")
    file.write_text(f"{probe}sys.exit(3)\n")
    env = environment({"SEEN": str(tmp_path / "seen"), "TZ": "Asia/Kolkata", "PYTHONHASHSEED": "0"})
    env["PYTHONUNBUFFERED"] = unbuffered
    seen: list[object] = []
    for place in (forked_programs(), nullcontext()):
        with place:
            done = subprocess.run(
                [sys.executable, "code/probe.py", "a"],
                cwd=tmp_path,
                env=env,
                input=b"given",
                capture_output=True,
            )
        seen.append(json.loads((tmp_path / "seen").read_text()))
        assert (done.returncode, done.stdout, done.stderr) == (3, b"said\n", b"complained\n")
    assert seen[0] == seen[1]
    assert f'"parent": {os.getpid()},' in (tmp_path / "seen").read_text()


WAITS = """
import time
print("waits", flush=True)
time.sleep(3600)
"""


def waiting(folder: Path) -> Popen:
    """Start a command that waits for a signal."""
    (folder / "waits.py").write_text(WAITS)
    with (folder / "out").open("w") as out:
        streams = [out.fileno()] * 3
        popen = fork(["check", "waits.py"], environment(), streams, folder)
    assert popen is not None
    until(lambda: "waits" in (folder / "out").read_text())
    return popen


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)]
)
def test_signals_end_it_as_they_end_a_new_process(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    popen = waiting(tmp_path)
    assert popen.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        popen.wait(0.01)
    popen.send_signal(number)
    assert popen.wait(PATIENCE_SECONDS) == code
    assert gone(popen.pid)
    popen.kill()  # which is nothing any more
    assert (popen.poll(), popen.wait()) == (code, code)


def test_several_run_at_once_and_each_end_is_told_of_its_own(tmp_path: Path) -> None:
    first = waiting(tmp_path)
    second = waiting(tmp_path)
    first.kill()
    assert (first.wait(PATIENCE_SECONDS), second.poll()) == (-9, None)
    second.terminate()
    assert second.wait(PATIENCE_SECONDS) == -15


@pytest.mark.parametrize(
    "changes", [{"PYTHONHASHSEED": "random"}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "POSIX"}]
)
def test_what_an_interpreter_reads_as_it_starts_needs_a_new_process(
    changes: dict[str, str],
) -> None:
    assert fork(["--version"], environment(changes), [0, 1, 2]) is None


STARTS = """
import os, subprocess, sys
from holdfast import App

app = App("starts")
reading, writing = os.pipe()
os.dup2(writing, 50)
child = subprocess.Popen(
    [sys.executable, "-m", "holdfast", "check", "probe.py"],
    env={**os.environ, "PARENT": str(os.getpid())},
    stderr=subprocess.PIPE, pass_fds=[50], start_new_session=True,
)
os.close(writing)
os.close(50)
_, complained = child.communicate()
print(child.returncode, complained.decode(), os.read(reading, 100).decode(), flush=True)
"""
STARTED = """
import os
os.write(50, b"passed on")
os.close(50)
assert int(os.environ.pop("PARENT")) == os.getppid()
"""


def test_what_a_command_starts_sees_what_it_sees_in_a_new_process(tmp_path: Path) -> None:
    """It is a child of the command, with the descriptors that were passed to it."""
    (tmp_path / "probe.py").write_text(STARTED + PROBE)
    (tmp_path / "dev.py").write_text(STARTS)  # a word by which it starts others
    forked = seen_by(fork, tmp_path, "check", "dev")
    (tmp_path / "seen").unlink()
    assert forked == seen_by(a_new_process, tmp_path, "check", "dev")


def test_a_line_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full, (tmp_path / "err").open("w") as err:
        streams = [full.fileno(), full.fileno(), err.fileno()]
        codes = [
            popen.wait(PATIENCE_SECONDS)
            for start in (fork, a_new_process)
            if (popen := start(["--version"], environment(), streams, tmp_path)) is not None
        ]
    assert codes == [1, 1]
