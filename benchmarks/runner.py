"""Measure every engine on every workload, by turns, several times."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.engine import Measurement
from benchmarks.engines import CANDIDATES
from benchmarks.server import Server

ROOT = Path(__file__).parent.parent
CACHE = Path(__file__).parent / ".cache"
RUN_SECONDS = 900


@dataclass
class Row:
    """One metric, and each engine's figures for it."""

    title: str
    unit: str
    higher: bool
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def median(self, engine: str) -> float | None:
        """Return the engine's median, None where it was not measured."""
        return statistics.median(self.values[engine]) if self.values.get(engine) else None


@dataclass
class Results:
    """All rows by metric, and what went wrong."""

    rows: dict[str, Row] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)

    def add(self, engine: str, measured: Measurement) -> None:
        """Take in one figure."""
        row = self.rows.setdefault(
            measured.metric, Row(measured.title, measured.unit, measured.higher)
        )
        row.values[engine].append(measured.value)


@dataclass(frozen=True)
class Runner:
    """Runs workloads on one server; `say` is told of the progress."""

    server: Server
    scale: float = 1.0

    def install(self, names: Sequence[str], results: Results) -> dict[str, Path]:
        """Return each engine's interpreter; one that cannot be installed becomes a trouble."""
        pythons = {}
        for name in names:
            _say(f"{name}: installing" if CANDIDATES[name].requirements else f"{name}: here")
            try:
                pythons[name] = CANDIDATES[name].install(CACHE)
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                results.troubles.append(
                    f"{name} could not be installed, so it is not measured: {error}"
                )
                _say(results.troubles[-1])
        return pythons

    def run(
        self, pythons: dict[str, Path], workloads: Sequence[str], repeat: int, results: Results
    ) -> None:
        """Measure: per workload the engines take turns, so that a slow moment hits them all."""
        for workload in workloads:
            for turn in range(repeat):
                for engine, python in pythons.items():
                    if reason := CANDIDATES[engine].reason_not_to_run(workload):
                        _say(f"{turn + 1}/{repeat} {engine}: {workload} {reason}")
                        continue
                    try:
                        measured = self._measure(engine, python, workload)
                    except RuntimeError as error:
                        results.troubles.append(f"{engine}, {workload}: {error}")
                        _say(results.troubles[-1])
                        continue
                    for one in measured:
                        results.add(engine, one)
                    figures = ", ".join(f"{m.metric} {m.value:.4g} {m.unit}" for m in measured)
                    _say(f"{turn + 1}/{repeat} {engine}: {figures}")

    def _measure(self, engine: str, python: Path, workload: str) -> list[Measurement]:
        database = f"bench_{engine}"
        url = self.server.fresh_database(database)
        command = [str(python), "-m", "benchmarks.drive"]
        command += ["--engine", engine, "--workload", workload, "--database", url]
        command += ["--log", str(CACHE / f"{engine}.log"), "--scale", str(self.scale)]
        try:
            answer = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as expired:
            raise RuntimeError(f"not done within {RUN_SECONDS} s") from expired
        finally:
            self.server.drop_database(database)
        if answer.returncode != 0:
            raise RuntimeError(answer.stderr.strip()[-1500:])
        return [Measurement(**one) for one in json.loads(answer.stdout.splitlines()[-1])]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
