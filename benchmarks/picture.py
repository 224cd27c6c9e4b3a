"""The picture of the most important figures: bars of each engine, made from results.json.

The longest bar of a workload is that of its largest figure, so bars of one workload compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.engines import OURS

LINK = "../docs/images/benchmarks.svg"  # from RESULTS.md
WORKLOADS = ("W1", "W5", "W50", "E", "E-batch", "L", "S")
ENGINES = (OURS, "absurd", "dbos")
WIDTH, LEFT, LONGEST, LINE, GAP = 760, 250, 380, 16, 26


def write_picture(figures: dict[str, Any], target: Path) -> None:
    """Write the picture of the figures of results.json; what was not measured is left out."""
    measured = [figures[name] for name in WORKLOADS if name in figures]
    rows = [row for row in measured if any(row.get(engine) for engine in ENGINES)]
    height = len(rows) * (LINE * len(ENGINES) + GAP) + GAP
    bars = "\n".join(line for number, row in enumerate(rows) for line in _bars(number, row))
    what = "; ".join(f"{row['title']}: {_told(row)}" for row in rows)
    target.write_text(
        f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">
<title>holdfast beside absurd and dbos</title>
<desc>{escape(what)}</desc>
<style>
text{{font:12px system-ui,sans-serif;fill:#333}}
.title{{font-weight:600}}
.{OURS}{{fill:#0f766e}}.absurd{{fill:#94a3b8}}.dbos{{fill:#cbd5e1}}
@media (prefers-color-scheme:dark){{text{{fill:#ddd}}.{OURS}{{fill:#2dd4bf}}.dbos{{fill:#475569}}}}
</style>
{bars}
</svg>
"""
    )


def _bars(number: int, row: dict[str, Any]) -> Iterator[str]:
    """Draw one workload: its title, and a bar for each engine that was measured."""
    top = number * (LINE * len(ENGINES) + GAP) + GAP
    largest = max(row.get(engine) or 0 for engine in ENGINES)
    yield f'<text class="title" x="0" y="{top + 10}">{escape(row["title"])}</text>'
    yield f'<text x="0" y="{top + 26}">{row["unit"]}, {row["better"]} is better</text>'
    for place, engine in enumerate(ENGINES):
        y, value = top + LINE * place, row.get(engine)
        yield f'<text x="{LEFT - 8}" y="{y + 10}" text-anchor="end">{engine}</text>'
        length = 0 if value is None else max(1, round(LONGEST * value / largest))
        yield f'<rect class="{engine}" x="{LEFT}" y="{y}" width="{length}" height="12"/>'
        said = (
            "not measured" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:g}"
        )
        yield f'<text x="{LEFT + length + 6}" y="{y + 10}">{said}</text>'


def _told(row: dict[str, Any]) -> str:
    return ", ".join(f"{engine} {row.get(engine)} {row['unit']}" for engine in ENGINES)
