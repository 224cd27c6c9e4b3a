"""How many instructions the runtime executes: `python -m benchmarks.instructions`.

Figures of `micro_turn.py`, and of the encoding of a pydantic model, in thousands of instructions of
the processor, counted by `valgrind --tool=callgrind`. They do not depend on what else the machine
does, so they show if one commit is slower than another: `--against COMMIT` counts that commit as
well. Each figure is the difference between many calls and few, so imports do not count; the garbage
collector is off.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from benchmarks import micro_turn
from benchmarks.quick import checkout
from benchmarks.runner import ROOT
from holdfast.codec import encode
from holdfast.runtime.turn.turn import Turn

VALGRIND = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
LONGEST_SECONDS = 300
FEW, MANY = 10, 110
_kept: list[Turn] = []  # so that no turn is freed while others are counted


def live(count: int) -> None:
    micro_turn.drive(micro_turn.make(micro_turn.LONG, 1, str(count)))


def one_step_runs(count: int) -> None:
    for number in range(count):
        micro_turn.drive(micro_turn.make(micro_turn.LONG, number, "1"))


def new_instances(count: int) -> None:
    for number in range(count):
        _kept.append(micro_turn.make(micro_turn.LONG, number, "1"))
        _kept[-1].begin()


class Order(BaseModel):
    article: str = "a book"
    amount: int = 2
    notes: list[str] = ["gift", "fragile"]


def models(count: int) -> None:
    order = Order()
    for _ in range(count):
        encode(order)


FIGURES: dict[str, Callable[[int], None]] = {
    "a step, live": live,
    "a run of one step": one_step_runs,
    "a new run, to its first step": new_instances,
    "a pydantic model as JSON": models,
}


def counted(action: Callable[[int], None], calls: int, dump: Path) -> int:
    """Return the instructions of `calls` calls; valgrind writes them to `dump`."""
    _control("--instr=on")
    _control("--zero")
    action(calls)
    _control("--dump")
    _control("--instr=off")
    [total] = [line for line in dump.read_text().splitlines() if line.startswith("totals:")]
    return int(total.split()[1])


def _control(option: str) -> None:
    command = ["callgrind_control", option, str(os.getpid())]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def print_figures(out: Path) -> None:
    """Print the figures of the holdfast that is imported, a line each; valgrind runs this."""
    dumps = 0
    for action in FIGURES.values():
        action(FEW)  # what is made once
    gc.collect()
    gc.freeze()
    gc.disable()
    for action in FIGURES.values():
        found: list[int] = []
        for calls in (FEW, MANY):
            dumps += 1
            found.append(counted(action, calls, out.with_name(f"{out.name}.{dumps}")))
        print((found[1] - found[0]) / (MANY - FEW) / 1000)


def count(source: Path) -> list[float]:
    """Return the figures of the holdfast of a checkout, in the order of FIGURES."""
    with tempfile.TemporaryDirectory(prefix="holdfast-instructions-") as folder:
        out = Path(folder) / "out"
        command = [*VALGRIND, f"--callgrind-out-file={out}", sys.executable]
        command += ["-m", "benchmarks.instructions", "--side", str(out)]
        environment = {**os.environ, "PYTHONPATH": str(source / "src"), "PYTHONHASHSEED": "0"}
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
        )
    if done.returncode != 0:
        raise SystemExit(f"valgrind failed for {source}:\n{done.stderr[-2000:]}")
    return [float(line) for line in done.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is not None:
        print_figures(options.side)
        return
    now = count(ROOT)
    before = now
    if options.against is not None:
        with checkout(options.against) as base:
            before = count(base)
    for name, old, new in zip(FIGURES, before, now, strict=True):
        compared = f" {old:9.1f} k before {new / old:6.3f}x" if options.against else ""
        print(f"{name:30} {new:9.1f} k{compared}")


if __name__ == "__main__":
    main()
