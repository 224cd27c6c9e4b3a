"""The figures as a line, as a table for a terminal, and as a table in a page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.failures.scenarios import Scenario

BEGIN, END = "<!-- failures: begin -->", "<!-- failures: end -->"
SECONDS = ("pause", "first", "last", "caller")
LOST = ("runs lost", "signals lost", "ends lost")
COUNTS = ("repeated", "twice")
HEADS = (*SECONDS, "lost", *COUNTS, "wrong")


def line(figures: dict[str, Any]) -> str:
    """Return the figures of one try."""
    times = [f"{name} {figures[name]:.2f} s" for name in SECONDS if figures[name] is not None]
    counts = [f"{name} {figures[name]}" for name in (*LOST, *COUNTS) if figures[name]]
    lists = [f"{len(figures[name])} {name}" for name in ("late", "wrong") if figures[name]]
    runs = f"{figures['runs']} runs, {figures['open']} open, {figures['held']} held"
    return ", ".join([*times, runs, *counts, *lists])


def text(results: dict[str, Any]) -> str:
    """Lay the figures out for a terminal."""
    lines: list[tuple[str, ...]] = [("", *HEADS)]
    lines += [(name, *_cells(results[name]["tries"])) for name in results]
    widths = [max(len(row[column]) for row in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in lines
    )


def write_document(
    results: dict[str, Any], scenarios: Sequence[type[Scenario]], page: Path
) -> None:
    """Replace the table of a page."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no lines {BEGIN} and {END}")
    page.write_text(
        before + begin + "\n" + "\n".join(_document(results, scenarios)) + "\n" + end + after
    )


def _document(results: dict[str, Any], scenarios: Sequence[type[Scenario]]) -> list[str]:
    lines = ["| failure | tries | " + " | ".join(HEADS) + " |"]
    lines += ["|---|---:|" + "---:|" * len(HEADS)]
    measured = [each for each in scenarios if each.name in results]
    for scenario in measured:
        tries = results[scenario.name]["tries"]
        cells = " | ".join(_cells(tries))
        lines.append(f"| {scenario.title} | {len(tries)} | {cells} |")
    return [*lines, "", *_about([results[each.name]["about"] for each in measured])]


def _about(measured: list[dict[str, Any]]) -> list[str]:
    of = measured[-1]["machine"]
    dates = sorted({each["date"] for each in measured})
    versions = sorted({each["postgresql"].partition(" ")[0] for each in measured})
    alone = all(each["alone"] for each in measured)
    return [
        f"Measured on {' and '.join(dates)} with PostgreSQL {' and '.join(versions)}, Python"
        f" {of['python']}, {of['cores']} cores ({of['processor']}), {of['memory']}, an fsync of"
        f" {of['fsync of 8 kB, p50']}. All processes shared the machine;"
        + (
            " nothing else ran on it."
            if alone
            else " other programs kept it busy, so the figures are preliminary."
        )
    ]


def _cells(tries: list[dict[str, Any]]) -> list[str]:
    return [
        *(_seconds([each[name] for each in tries]) for name in SECONDS),
        _count([sum(each[name] for name in LOST) for each in tries]),
        *(_count([each[name] for each in tries]) for name in COUNTS),
        _count([len(each["wrong"]) for each in tries]),
    ]


def _seconds(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    return f"{statistics.median(known):.1f}, {max(known):.1f}"


def _count(values: list[int]) -> str:
    return "0" if not any(values) else f"{statistics.median(values):g}, {max(values)}"
