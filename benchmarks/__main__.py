"""Measure holdfast beside DBOS, Absurd and pgflow: `python -m benchmarks [--workloads W1,L] …`."""

from __future__ import annotations

import argparse
import json
import os
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import machine, report
from benchmarks.engines import CANDIDATES, PGFLOW_SQL, newest_version
from benchmarks.runner import CACHE, Results, Runner
from benchmarks.server import alone, serve
from benchmarks.workloads import WORKLOADS

HERE = Path(__file__).parent


def main() -> None:
    options = _options()
    if options.pgflow is not None:
        os.environ[PGFLOW_SQL] = str(options.pgflow.resolve())
    with alone(CACHE):
        _measure(options)


def _measure(options: argparse.Namespace) -> None:
    for log in CACHE.glob("*.log"):
        log.unlink()
    results = Results()
    with serve(options.database, CACHE / "postgresql") as server:
        about: dict[str, Any] = {
            "date": datetime.now(UTC).date().isoformat(),
            "engines": options.engines,
            "repeat": options.repeat,
            "scale": options.scale,
            "machine": machine.describe(CACHE),
            "postgresql": server.describe(),
        }
        runner = Runner(server, options.scale)
        pythons = runner.install(options.engines, results)
        about["versions"] = {name: _version(name) for name in pythons}
        runner.run(pythons, options.workloads, options.repeat, results)
    figures = report.to_json(results, about)
    options.output.write_text(json.dumps(figures, indent=2) + "\n")
    if options.document:
        report.write_document(options.output, options.document)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print()
    print(report.table(figures, options.engines))
    print(f"\nwritten to {options.output}")
    for trouble in results.troubles:
        print(f"trouble: {trouble}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--engines", type=_names(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--workloads", type=_names(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--repeat", type=int, default=3, help="runs of each; the median counts")
    parser.add_argument("--scale", type=float, default=1.0, help="0.1: a tenth of the work")
    parser.add_argument("--database", metavar="URL", help="a server instead of the embedded one")
    parser.add_argument(
        "--pgflow",
        type=Path,
        metavar="PATH",
        help=f"pgflow's SQL, a file, or a directory with pgmq.sql and its migrations; ${PGFLOW_SQL}"
        " is the default. Get it from github.com/pgflow-dev/pgflow, pkgs/core/supabase/migrations"
        " and github.com/pgmq/pgmq, tag v1.5.1, pgmq-extension/sql; engine_pgflow.py has the"
        " commands. Without it pgflow is not measured.",
    )
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    parser.add_argument("--document", type=Path, help="write the results as Markdown as well")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    return parser.parse_args()


def _names(known: dict[str, Any]) -> Any:
    """Return a parser of comma-separated names out of the known ones."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {unknown}; known: {', '.join(known)}")
        return names

    return parse


def _version(name: str) -> str:
    engine = CANDIDATES[name]
    if engine.given_by:
        return newest_version(Path(os.environ[engine.given_by]))
    pinned = next((r.partition("==")[2] for r in engine.requirements), "")
    return pinned or version(engine.package)


if __name__ == "__main__":
    main()
