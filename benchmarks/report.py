"""The figures as a table, as JSON and as a document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engines import CANDIDATES, LIMIT, OURS
from benchmarks.picture import LINK, write_picture
from benchmarks.runner import Results

NOTES = (
    "W: the runs are queued up before a worker that is warm and held still; the time runs from"
    " its release to the end of the last run. Starting the runs is not in it (that is E).",
    "R-resume: DBOS recovers its runs when a worker starts, so part of its replay happens before"
    " the clock runs. Absurd and holdfast replay when the signal arrives.",
    "idle: each engine is set up as for L. The peers poll; a longer interval costs them less and"
    " adds to their latency.",
    "memory: Absurd keeps nothing of a suspended run in its worker, so it replays at each wake-up.",
    "limit: no engine, only the events that one has to write, each durable before the next of its"
    " run: no claim, no lease, no user code.",
    "W1 beside Absurd: ten clients with a thread and a connection each are its best setting; one"
    " asynchronous client is slower.",
    "E waits for each answer before the next start, so it measures one transaction's way to the"
    " disk and back; starts of the same moment would share a transaction.",
    "S and L-paused come after 10 ms in which nobody had anything to do, and the processors and the"
    " disk answer more slowly then.",
    "L, S and R-resume are chains of three or four transactions between processes that sleep in"
    " between: compare L with L-paused for what a pause of 10 ms costs on this machine.",
    "A: a step of DBOS runs where its workflow does; the nearest that it has is a child run (C).",
    "FL: pgflow counts the open steps of a run, makes a message of each task and an array of the"
    " results of a map; its functions advance one task a call. holdfast reports tasks in batches,"
    " which lease the next steps to the same worker; results of elements are rows.",
    "FLC beside W50: the same chain as a graph and as code. The code of a workflow decides in the"
    " worker's memory what comes next, and the database records it. For a graph the database"
    " decides, so a step is the end of one task and the start of another.",
    "X: DBOS marks the runs as cancelled and that is all; holdfast wakes each, and its code may"
    " clean up before it ends.",
    "idle transactions are counted by the server, its own autovacuum included.",
)
ABOUT = "about"
# What holdfast set out to reach on two cores, by metric.
GOALS = {
    "W1": ">= 8,000",
    "W5": ">= 20,000",
    "W50": ">= 30,000",
    "E": ">= 3,000",
    "E-batch": ">= 25,000",
    "L": "<= 2",
    "S": "<= 2.5",
    "F": "<= 10",
    "T": "<= 1",
    "R": "<= 1.2",
    "R-resume": "<= 15",
    "Z-x": ">= 0.5",
    "A-trip": "<= 6",
    "A1000": "<= 1.5",
    "A10000": "<= 15",
    "C1000": "<= 1.5",
    "C10000": "<= 15",
    "X1000": "<= 1",
    "K": "<= 20",
    "FL1": ">= 6,000",
    "FLC": ">= 12,000",
    "FLM10000": "<= 1.5",
    "FLM100000": "<= 15",
    "FLD": "<= 25",
    "FLI": "<= 4",
    "SCH": "<= 2,000",
    "SCH4": "<= 5,000",
    "SCHL": "<= 5",
    "LK": ">= 5,000",
    "LB-x": "<= 2",
    "LF": "<= 50",
    "D": ">= 20,000",
    "D-archive": ">= 10,000",
    "D-W5": "<= 1.2",
    "idle-cpu": "< 1",
    "idle-tps": "< 2",
    "memory": "< 100",
    "L-million-x": "<= 2",
}


def to_json(results: Results, about: dict[str, Any]) -> dict[str, Any]:
    """Return workload -> engine -> median, with unit, title and spread, and what it ran on."""
    figures: dict[str, Any] = {ABOUT: about | {"troubles": results.troubles}}
    for metric, row in results.rows.items():
        medians = {engine: _rounded(row.median(engine)) for engine in row.values}
        spread = {e: [_rounded(min(v)), _rounded(max(v))] for e, v in row.values.items()}
        figures[metric] = {
            "title": row.title,
            "unit": row.unit,
            "better": "higher" if row.higher else "lower",
            **medians,
            "spread": spread,
        }
    return figures


def table(figures: dict[str, Any], engines: Sequence[str]) -> str:
    """Lay the figures out for a terminal, with the ratio to the better peer."""
    lines = [("", "", *engines, "ratio", "share")]
    lines += [
        (
            metric,
            f"{row['title']} ({row['unit']})",
            *_cells(metric, row, engines),
            ratio(row),
            share(row),
        )
        for metric, row in _rows(figures)
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def ratio(row: dict[str, Any]) -> str:
    """Say how many times better than its best peer holdfast is; empty where nothing compares."""
    peers = [row[name] for name in CANDIDATES if name not in (OURS, LIMIT) and row.get(name)]
    if not peers or not row.get(OURS) or row["unit"] == "x":
        return ""
    times = row[OURS] / max(peers) if row["better"] == "higher" else min(peers) / row[OURS]
    return f"{times:.1f}x"


def share(row: dict[str, Any]) -> str:
    """Return which part of the limit holdfast reaches; empty without a limit."""
    if not row.get(OURS) or not row.get(LIMIT):
        return ""
    return f"{row[OURS] / row[LIMIT]:.0%}"


def write_document(source: Path, target: Path) -> None:
    """Write RESULTS.md from results.json, and the picture if what it links is there."""
    figures = json.loads(source.read_text())
    picture = target.parent / LINK
    if picture.parent.is_dir():  # not for a document somewhere else
        write_picture(figures, picture)
    about = figures[ABOUT]
    measured = {name for _, row in _rows(figures) for name in row}
    engines = [name for name in CANDIDATES if name in measured or name in about.get("engines", ())]
    lines = ["# Benchmark results", "", *_introduction(about), ""]
    lines += [f"![Each engine's figures as bars]({LINK})", ""]
    lines += [f"| | workload | unit | {' | '.join(engines)} | ratio | share | goal |"]
    lines += ["|---|---|---|" + "---:|" * (len(engines) + 3)]
    for metric, row in _rows(figures):
        cells = " | ".join(_cells(metric, row, engines))
        about_metric = f"{metric} | {row['title']} | {row['unit']}"
        goal = GOALS.get(metric, "")
        lines.append(f"| {about_metric} | {cells} | {ratio(row)} | {share(row)} | {goal} |")
    lines += ["", "Notes:", "", *(f"- {note}" for note in NOTES)]
    lines += ["", "Settings of the engines:", ""]
    lines += [
        f"- {name} {about['versions'].get(name, '')}: {CANDIDATES[name].setting}"
        for name in engines
    ]
    if about["troubles"]:
        lines += ["", "Not measured:", "", *(f"- {trouble}" for trouble in about["troubles"])]
    target.write_text("\n".join(lines) + "\n")


def _introduction(about: dict[str, Any]) -> Iterator[str]:
    runs = "One run of each" if about["repeat"] == 1 else f"Medians of {about['repeat']} runs"
    yield (
        f"{runs} by `make bench` on {about['date']}. Every engine runs on the same server, on a"
        " database of its own that is new for each run, with one worker"
        " process; the driver is another process that sees the engine through its public client."
        " The engines take turns. The ratio says how many times better holdfast is than the"
        " better of its peers; the share says which part of the limit it reaches. What each"
        " workload does is in the docstrings beside this file."
    )
    if remark := about.get("remark"):
        yield f"\n{remark}"
    yield ""
    yield from (f"- {key}: {value}" for key, value in about["machine"].items())
    yield from (f"- PostgreSQL {key}: {value}" for key, value in about["postgresql"].items())


def _rows(figures: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((metric, row) for metric, row in figures.items() if metric != ABOUT)


def _cells(metric: str, row: dict[str, Any], engines: Sequence[str]) -> list[str]:
    return [
        CANDIDATES[engine].reason_not_to_run(metric) or "-" if value is None else _figure(value)
        for engine in engines
        for value in [row.get(engine)]
    ]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
