"""What became slower since a commit: `python -m benchmarks.quick --against COMMIT [--rounds 3]`.

The commit and this checkout take turns on one server, the commit first and last. So each side of
this checkout is compared with the mean of the two of the commit around it. These two are compared
with each other as well: by how much they differ at most is the `noise` of a figure, as their code
is the same. A figure is called slower, or faster, if it differs by more than its noise in every
round, and if the median of the ratios differs by more than 3 %. Shown are medians in µs for each
step, start or call. Processor times say more than wall times while the machine does other work.
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
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from benchmarks.runner import CACHE, ROOT
from benchmarks.server import Server, alone, serve

DATABASE = "bench_quick"
SIDE_SECONDS = 120
LEAST = 0.03
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


def table(before: Sequence[Figures], now: Sequence[Figures]) -> str:
    """Return a line for each figure: both medians, the median of the ratios, noise, the verdict.

    `before` is one longer: each of `now` was measured between two of it.
    """
    lines = [f"{'µs':32} {'before':>10} {'now':>10} {'ratio':>7} {'noise':>7}"]
    for name in now[0]:
        old, new = _all_of(before, name), _all_of(now, name)
        if old and new:
            pairs = list(pairwise(old))
            ratios = [2 * each / sum(pair) for pair, each in zip(pairs, new, strict=True)]
            spread = max(max(pair) / min(pair) for pair in pairs) - 1
            figures = (statistics.median(old), statistics.median(new), statistics.median(ratios))
            shown = "{:10.1f} {:10.1f} {:6.3f}x".format(*figures)
            lines.append(f"{name:32} {shown} {spread:6.1%} {verdict(ratios, spread)}")
    return "\n".join(lines)


def _all_of(sides: Sequence[Figures], name: str) -> list[float]:
    """Return a figure of all sides; empty if one lacks it, or was too short to be measured."""
    found = [each.get(name, 0.0) for each in sides]
    return found if all(found) else []


def verdict(ratios: Sequence[float], spread: float) -> str:
    """Return the word for a figure whose rounds have these ratios, if they agree.

    `spread` is by how much the same code differed from itself.
    """
    ratio = statistics.median(ratios)
    if min(ratios) > 1 + spread and ratio > 1 + LEAST:
        return "slower"
    if max(ratios) < 1 / (1 + spread) and ratio < 1 - LEAST:
        return "faster"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quick", description=__doc__)
    parser.add_argument("--against", required=True, metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns-only", action="store_true", help="only the runtime, no database")
    options = parser.parse_args()
    before: list[Figures] = []
    now: list[Figures] = []
    with alone(CACHE), checkout(options.against) as base, serve(None, CACHE / "home") as server:

        def measure(folder: Path) -> Figures:
            found = turns(folder)
            return found if options.turns_only else found | workloads(folder, server)

        before.append(measure(base))
        for number in range(options.rounds):
            now.append(measure(ROOT))
            before.append(measure(base))
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    print(table(before, now))


if __name__ == "__main__":
    main()
