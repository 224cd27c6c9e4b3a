"""The engines that are compared, and the environments they run in."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import cast

from benchmarks.engine import Engine

INSTALL_SECONDS = 300
OURS, LIMIT = "holdfast", "limit"
NOT_OFFERED, NOT_MEASURED, NOT_GIVEN = "not offered", "not measured", "not given"
NO_MEANING = "-"
SCHEDULES = ("SCH", "SCH4", "SCHL")
RETENTION = ("D", "D-archive", "D-W5")
TOPICS = ("TP", "TPW")
LIMITS = ("LK", "LB", "LF")
GRAPHS = ("FL1", "FLC", "FLM1000", "FLM10000", "FLM100000", "FLD", "FLI")
PGFLOW_SQL = "HOLDFAST_BENCH_PGFLOW"  # where pgflow's SQL is, see engine_pgflow


@dataclass(frozen=True)
class Candidate:
    """An engine: where its adapter is, what it needs from PyPI, and how it is set up.

    With no requirements it runs in the environment that runs the benchmark. `missing` says of
    workloads that are not run with it why: it has no such thing, or nobody measured it. `only`
    names the workloads that mean something for it. `package` is the one whose version is shown
    where `requirements` names none. `given_by` is the variable of the environment that says
    where the engine is, if it is neither on PyPI nor here.
    """

    name: str
    adapter: str
    requirements: tuple[str, ...]
    setting: str
    missing: Mapping[str, str] = field(default_factory=dict)
    only: frozenset[str] | None = None
    package: str = ""
    given_by: str = ""

    def reason_not_to_run(self, workload: str) -> str | None:
        """Return why this engine is not run with a workload, None if it is."""
        if self.only is not None and workload not in self.only:
            return NO_MEANING
        if self.given_by and not os.environ.get(self.given_by):
            return NOT_GIVEN
        return self.missing.get(workload)

    def load(self, url: str) -> Engine:
        """Import the adapter, inside the engine's own environment."""
        module, _, kind = self.adapter.partition(":")
        return cast(Engine, getattr(import_module(module), kind)(url))

    def install(self, cache: Path) -> Path:
        """Return the engine's interpreter, installing the engine first where it is missing.

        Raises RuntimeError with the installer's last word, or if the engine was not given.
        """
        if self.given_by and not Path(os.environ.get(self.given_by) or "/-").exists():
            raise RuntimeError(f"${self.given_by} does not say where it is")
        if not self.requirements:
            return Path(sys.executable)
        home = cache / self.name
        python, done = home / "bin" / "python", home / "installed"
        wanted = "\n".join((sys.version, *self.requirements))
        if not done.exists() or done.read_text() != wanted:
            venv.create(home, with_pip=True, clear=True)
            command = [str(python), "-m", "pip", "install", "--quiet", *self.requirements]
            answer = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
            )
            if answer.returncode != 0:
                raise RuntimeError(answer.stderr.strip().rpartition("\n")[2])
            done.write_text(wanted)
        return python


CANDIDATES = {
    candidate.name: candidate
    for candidate in (
        Candidate(
            OURS,
            "benchmarks.engine_holdfast:HoldfastEngine",
            (),
            "as installed: `holdfast worker`, 100 runs at once",
            package="holdfast",
        ),
        Candidate(
            "dbos",
            "benchmarks.engine_dbos:DbosEngine",
            ("dbos==3.4.0",),
            "one queue, 100 at once, polled every 10 ms (latency: 2 ms), synchronous workflows,"
            " pool of 20 without pre-ping",
            dict.fromkeys(("A-trip", "A1000", "A10000", *GRAPHS), NOT_OFFERED)
            | dict.fromkeys(
                ("C10000", "Z", "SCH", "SCH4", *RETENTION, *TOPICS, "LB", "LF"), NOT_MEASURED
            ),  # C10000 takes minutes
        ),
        Candidate(
            "dbos-async",
            "benchmarks.engine_dbos:DbosAsyncEngine",
            ("dbos==3.4.0",),
            "as dbos, with asynchronous workflows",
            only=frozenset({"W1", "W1-10", "W5", "W50", "L"}),
        ),
        Candidate(
            "absurd",
            "benchmarks.engine_absurd:AbsurdEngine",
            ("absurd-sdk==0.5.1", "absurdctl==0.5.1"),
            "10 clients in one process, each with its connection and thread, batches of 10,"
            " polled every 10 ms; fan-out: one asynchronous client, polled every 1 ms",
            dict.fromkeys(("A-trip", "A1000", "A10000", "C1000", "C10000", "Z"), NOT_MEASURED)
            | dict.fromkeys(("X1000", "K", *GRAPHS, *SCHEDULES, *TOPICS, *LIMITS), NOT_OFFERED)
            | dict.fromkeys(RETENTION, NOT_MEASURED),
        ),
        Candidate(
            "pgflow",
            "benchmarks.engine_pgflow:PgflowEngine",
            (),
            "its SQL with pgmq, on a server without Supabase: broadcasts cost nothing; a thin"
            " worker of one flow in place of its edge worker, 100 tasks at once, 100 messages read"
            " at a time, 4 connections for the ends, polls every 10 ms (latency: 2 ms)",
            dict.fromkeys(("FLM10000", "FLM100000"), NOT_MEASURED),  # takes minutes
            only=frozenset(GRAPHS),
            given_by=PGFLOW_SQL,
        ),
        Candidate(
            LIMIT,
            "benchmarks.engine_limit:LimitEngine",
            (),
            "no engine: as many events a run as holdfast writes, inserted by bare asyncpg,"
            " an event a run and commit, two connections",
            package="asyncpg",
            only=frozenset({"W1", "W1-10", "W5", "W50"}),
        ),
    )
}


def newest_version(path: Path) -> str:
    """Return the name of the newest migration at a path, of a file its own name."""
    return max((file.stem for file in path.glob("[0-9]*.sql")), default=path.stem)
