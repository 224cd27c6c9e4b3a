"""The curves of all machines: their section of RESULTS.md, and the picture that it links."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.watching import BUSY

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
LINK = "../docs/images/curves.svg"  # from RESULTS.md
HEADING = "## Curves over processes"
FULL = 0.9  # of the processors, or of one process: no more can be had
WIDTH, HEIGHT, EDGE, COLUMNS = 240, 150, 44, 3
SIDES = ("workers", "server", "client", "others")
LOG = ("IO:WalSync", "IO:WalWrite", "LWLock:WALWrite")  # a commit waits for the server's log
COLORS = ("#0f766e", "#b45309", "#6d28d9", "#be123c", "#0369a1")

Machine = Mapping[str, Any]
Point = Mapping[str, Any]


def write(folder: Path) -> None:
    """Write the section and the picture of the files of a folder."""
    machines = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    if not machines:
        raise SystemExit(f"{folder} has no curves: measure first")
    (HERE / LINK).write_text(picture(machines))
    text = RESULTS.read_text()
    head, found, rest = text.partition(f"{HEADING}\n")
    after = rest.partition("\n## ") if found else ("", "", "")
    kept = f"\n## {after[2]}" if after[1] else ""
    RESULTS.write_text(f"{head.rstrip()}\n\n" + "\n".join(section(machines)) + "\n" + kept)


def section(machines: Mapping[str, Machine]) -> Iterator[str]:
    """Return the lines of the section: of each machine a table, with what bounds each figure."""
    yield HEADING
    yield ""
    yield (
        "By `python -m benchmarks.curves`: so many worker processes (E: so many programs that"
        " start runs one after another), on the same machine as the server. Medians, each point in"
        " empty databases. Shards: how many databases of this one server are the engine; with more"
        " than one, the processes are those of all. Workers, server, client, others: how many cores"
        " each used. What the connections did: how many, on average, were on a processor or waited,"
        " and for what. To add a machine, measure with `--name` and send the file of"
        " `benchmarks/machines`."
    )
    yield ""
    yield f"![Figures over the number of processes]({LINK})"
    for name, machine in machines.items():
        yield from _table(name, machine)


def _table(name: str, machine: Machine) -> Iterator[str]:
    about = machine["about"]
    on, server = about["machine"], about["postgresql"]
    yield ""
    yield (
        f"**{name}**: {on['cores']} cores ({on['processor']}), {on['memory']}, fsync of 8 kB"
        f" {on['fsync of 8 kB, p50']}, Python {on['python']}, PostgreSQL"
        f" {server['server_version']}; holdfast {about['holdfast']} on {about['date']}, medians of"
        f" {about['rounds']}, load before {on['load before']}."
    )
    yield ""
    yield f"| | unit | processes | shards | figure | {' | '.join(SIDES)} | connections | bound by |"
    yield "|---|---|---:|---:|---:|" + "---:|" * len(SIDES) + "---|---|"
    for point in machine["points"]:
        _, unit = machine["curves"][point["curve"]]
        cores = point["cores"]
        used = " | ".join(f"{cores[side]:.2f}" for side in SIDES)
        waits = ", ".join(f"{what} {count:.1f}" for what, count in _waits(point)) or "nothing"
        yield (
            f"| {point['curve']} | {unit} | {point['processes']} | {point.get('shards', 1)}"
            f" | {point['value']:,.0f}"
            f" | {used} | {waits} | {bound(point, int(on['cores']))} |"
        )
    yield ""
    titles = "; ".join(f"{curve}: {title}" for curve, (title, _) in machine["curves"].items())
    yield f"{titles}."


def _waits(point: Point) -> list[tuple[str, float]]:
    """Return what most connections did: all that matter, three at most."""
    return [(what, count) for what, count in list(point["waits"].items())[:3] if count >= 0.05]


def bound(point: Point, cores: int) -> str:
    """Return what kept a figure from being larger, by what was used."""
    if point["curve"] == "idle":
        return "nothing: there is no work"
    used = point["cores"]
    if sum(used.values()) >= FULL * cores:
        most = max(used, key=lambda side: float(used[side]))
        return f"all {cores} cores, most of them by {most}"
    if used["workers"] >= FULL * point["processes"]:
        return "the interpreter of each process"
    waits: dict[str, float] = dict(point["waits"])
    busy, log = waits.pop(BUSY, 0.0), sum(waits.pop(each, 0.0) for each in LOG)
    most = max(waits, key=lambda what: waits[what], default="")
    if max(log, waits.get(most, 0.0)) <= busy:
        return "round trips: nothing is busy all the time"
    return "the disk: commits wait for the log" if log >= waits.get(most, 0.0) else most


def picture(machines: Mapping[str, Machine]) -> str:
    """Draw a small chart of each curve, with a line of each machine."""
    titles = {name: about for each in machines.values() for name, about in each["curves"].items()}
    charts = [
        line for place, name in enumerate(titles) for line in _chart(place, name, titles, machines)
    ]
    rows = -(-len(titles) // COLUMNS)
    width, height = COLUMNS * (WIDTH + EDGE), rows * (HEIGHT + 2 * EDGE) + 20 * len(machines)
    legend = [
        f'<text x="{EDGE}" y="{height - 20 * (len(machines) - place) + 10}"'
        f' style="fill:{COLORS[place % len(COLORS)]}">{escape(name)}</text>'
        for place, name in enumerate(machines)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            "<title>Figures over the number of processes</title>",
            f"<desc>{escape('; '.join(_told(machines)))}</desc>",
            "<style>text{font:12px system-ui,sans-serif;fill:#777}"
            ".title{font-weight:600}path{fill:none;stroke-width:2}.axis{stroke:#999}</style>",
            *charts,
            *legend,
            "</svg>\n",
        ]
    )


def _chart(
    place: int, name: str, titles: Mapping[str, Sequence[str]], machines: Mapping[str, Machine]
) -> Iterator[str]:
    left = place % COLUMNS * (WIDTH + EDGE) + EDGE
    top = place // COLUMNS * (HEIGHT + 2 * EDGE) + EDGE
    lines = {each: _points(machine, name) for each, machine in machines.items()}
    every = [point for points in lines.values() for point in points]
    most, largest = max(n for n, _ in every), max(value for _, value in every) or 1.0
    title, unit = titles[name]

    def at(processes: int, value: float) -> str:
        share = math.log2(processes) / max(1.0, math.log2(most))
        return f"{left + share * (WIDTH - EDGE):.1f} {top + HEIGHT * (1 - value / largest):.1f}"

    yield f'<text class="title" x="{left}" y="{top - 24}">{escape(name)}: {escape(title)}</text>'
    yield f'<text x="{left}" y="{top - 8}">up to {largest:,.0f} {escape(unit)}</text>'
    yield f'<path class="axis" d="M {left} {top} V {top + HEIGHT} H {left + WIDTH - EDGE}"/>'
    for n in sorted({n for n, _ in every}):
        x = at(n, 0).split()[0]
        yield f'<text x="{x}" y="{top + HEIGHT + 16}" text-anchor="middle">{n}</text>'
    for number, points in enumerate(lines.values()):
        path = " L ".join(at(n, value) for n, value in points)
        color = COLORS[number % len(COLORS)]
        yield f'<path d="M {path}" style="stroke:{color}"/>' if points else ""


def _points(machine: Machine, name: str) -> list[tuple[int, float]]:
    """Return the points of a curve over processes: of one database."""
    return [
        (point["processes"], point["value"])
        for point in machine["points"]
        if point["curve"] == name and point.get("shards", 1) == 1
    ]


def _told(machines: Mapping[str, Machine]) -> Iterator[str]:
    for name, machine in machines.items():
        for curve in machine["curves"]:
            values = ", ".join(f"{n}: {value:,.0f}" for n, value in _points(machine, curve))
            yield f"{name}, {curve} {values}"
