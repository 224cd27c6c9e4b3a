"""Figures beside what they may be at most, or must be at least: printed, and written as JSON."""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """A median of several measurements. `noise` is how far they lie apart, in its unit.

    It must be at most `budget`, or at least that where `higher`; without one it only tells.
    """

    name: str
    title: str
    unit: str
    value: float
    noise: float = 0.0
    budget: float | None = None
    higher: bool = False

    @property
    def kept(self) -> bool:
        """True if the figure keeps to its budget, or has none."""
        if self.budget is None:
            return True
        return self.value >= self.budget if self.higher else self.value <= self.budget

    def line(self) -> str:
        """Return the figure as a line of text."""
        sign = ">=" if self.higher else "<="
        bound = "" if self.budget is None else f"{sign} {self.budget:,g} {self.unit}"
        verdict = "" if self.budget is None else "kept" if self.kept else "MISSED"
        value = f"{self.value:,.1f} ± {self.noise:,.1f} {self.unit}"
        return f"{self.title:68} {value:>24}  {bound:14} {verdict}"


def figure(
    name: str,
    title: str,
    unit: str,
    measured: Sequence[float],
    budget: float | None = None,
    *,
    higher: bool = False,
) -> Figure:
    """Return the median of what was measured, with its noise."""
    noise = (max(measured) - min(measured)) / 2
    return Figure(name, title, unit, statistics.median(measured), noise, budget, higher)


def percentile(measured: Sequence[float], percent: int) -> float:
    """Return the smallest of the values that so many percent do not exceed."""
    ordered = sorted(measured)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def parser(module: str, about: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that all these benchmarks have."""
    made = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{module}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--output", type=Path, metavar="FILE", help="write the figures as JSON too")
    return made


def tell(figures: Sequence[Figure], output: Path | None) -> None:
    """Print figures, and write them to a file if one is given."""
    load = os.getloadavg()[0]
    print()
    for each in figures:
        print(each.line())
    print(f"the machine's load, this measurement included: {load:.1f}")
    if output is not None:
        shown = [asdict(each) | {"kept": each.kept} for each in figures]
        output.write_text(json.dumps({"load": load, "figures": shown}, indent=2) + "\n")
        print(f"\nwritten to {output}")
