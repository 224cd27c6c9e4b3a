"""What became slower since a commit: `python -m benchmarks.quick --against COMMIT [--rounds 3]`.

Both sides take turns on one server, so that a slow moment of the machine hits both. Shown are
medians in µs for each step, start or call; the ratio to the commit is taken within a round. A
figure is called slower, or faster, if every round says so and the median of the ratios differs
by more than 3 %. Processor times say more than wall times while the machine does other work.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.runner import CACHE, ROOT
from benchmarks.server import Server, alone, serve

DATABASE = "bench_quick"
SIDE_SECONDS = 120
NOISE = 0.03
NOW, BEFORE = "now", "before"
_TURN = re.compile(r"^(a .+?) +([\d.]+) µs$", re.MULTILINE)

Figures = dict[str, float]


@contextmanager
def checkout(commit: str) -> Generator[Path]:
    """Put a commit into a folder that is removed at the end."""
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory(prefix="holdfast-quick-") as temporary:
        folder = Path(temporary) / "checkout"
        add = [*git, "add", "--quiet", "--detach", str(folder), commit]
        if subprocess.run(add, check=False).returncode != 0:
            raise SystemExit(f"git has no commit {commit}, or cannot check it out")
        try:
            yield folder
        finally:
            subprocess.run([*git, "remove", "--force", str(folder)], check=False)


def turns(folder: Path) -> Figures:
    """Measure the runtime without a database, by the commit's own benchmark."""
    printed = _run([sys.executable, "benchmarks/micro_turn.py"], folder, folder)
    return {name: float(figure) for name, figure in _TURN.findall(printed)}


def workloads(folder: Path, server: Server) -> Figures:
    """Measure the short workloads of this checkout with the holdfast of a folder."""
    command = [sys.executable, "-m", "benchmarks.quick_side"]
    command += ["--database", server.fresh_database(DATABASE)]
    command += ["--log", str(CACHE / "quick.log"), "--server", str(server.process_id())]
    try:
        found: Figures = json.loads(_run(command, ROOT, folder).splitlines()[-1])
    finally:
        server.drop_database(DATABASE)
    return found


def _run(command: Sequence[str], cwd: Path, source: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(source / "src")}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=SIDE_SECONDS
    )
    if done.returncode != 0:
        raise SystemExit(f"{command[1:3]} failed for {source}:\n{done.stderr[-2000:]}")
    return done.stdout


def table(rounds: Sequence[Mapping[str, Figures]]) -> str:
    """Return a line for each figure: both medians, the median of the ratios, the verdict."""
    by_name: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in rounds:
        for name in one[NOW].keys() & one[BEFORE].keys():
            by_name[name].append((one[BEFORE][name], one[NOW][name]))
    lines = [f"{'µs':32} {BEFORE:>10} {NOW:>10} {'ratio':>7}"]
    for name in rounds[0][NOW]:
        if pairs := by_name[name]:
            before, now = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratios = [new / old for old, new in pairs if old]
            ratio = statistics.median(ratios) if ratios else 1.0
            lines.append(f"{name:32} {before:10.1f} {now:10.1f} {ratio:6.3f}x {verdict(ratios)}")
    return "\n".join(lines)


def verdict(ratios: Sequence[float]) -> str:
    """Return the word for a figure whose rounds have these ratios, if they agree."""
    if ratios and min(ratios) > 1 and statistics.median(ratios) > 1 + NOISE:
        return "slower"
    if ratios and max(ratios) < 1 and statistics.median(ratios) < 1 - NOISE:
        return "faster"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quick", description=__doc__)
    parser.add_argument("--against", required=True, metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns-only", action="store_true", help="only the runtime, no database")
    options = parser.parse_args()
    rounds: list[dict[str, Figures]] = []
    with alone(CACHE), checkout(options.against) as before, serve(None, CACHE / "home") as server:
        sides = [(BEFORE, before), (NOW, ROOT)]
        for number in range(options.rounds):
            one: dict[str, Figures] = {}
            for name, folder in sides if number % 2 else reversed(sides):
                one[name] = turns(folder)
                if not options.turns_only:
                    one[name] |= workloads(folder, server)
            rounds.append(one)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    print(table(rounds))


if __name__ == "__main__":
    main()
