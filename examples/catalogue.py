"""Catalogue a folder: describe each file, find duplicates, add up, and write a report.

    python examples/catalogue.py FOLDER REPORT [--slow]
    python examples/catalogue.py --graph

A flow: the database starts each step when those before it have ended, and describes the files at
once, on all workers that there are. Kill it at any moment and start it again with the same
arguments: files that were described are not read again. `--slow` pauses at each file, to give you
time to do that. `--graph` prints the flow as a Mermaid diagram.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from holdfast import App, local

app = App("catalogue")


@dataclass
class Job:
    """A folder to catalogue, where the report goes, and the pause in seconds at each file."""

    folder: str
    report: str
    pause: float


@dataclass
class Entry:
    """What the catalogue has of a file."""

    path: str
    pause: float


@dataclass
class Described:
    """A file: its size in bytes, its lines, and a hash of what is in it."""

    path: str
    size: int
    lines: int
    sha256: str


@dataclass
class Total:
    """The files of a kind together."""

    files: int = 0
    size: int = 0
    lines: int = 0


catalogue = app.flow("catalogue", input=Job, attempts=3, base_delay="1s", timeout="1m")


@catalogue.step
def files(run: Job) -> list[Entry]:
    """Find the files of the folder."""
    found = sorted(path for path in Path(run.folder).rglob("*") if path.is_file())
    return [Entry(str(path), run.pause) for path in found]


@catalogue.map(files)
def described(entry: Entry) -> Described:
    """Read one file."""
    print(f"reading {entry.path}\n", end="", flush=True)  # whole, from several threads
    content = Path(entry.path).read_bytes()
    time.sleep(entry.pause)
    return Described(
        entry.path, len(content), content.count(b"\n"), hashlib.sha256(content).hexdigest()
    )


@catalogue.step
def duplicates(described: list[Described]) -> list[list[str]]:
    """Group the files that have the same content."""
    same: defaultdict[str, list[str]] = defaultdict(list)
    for each in described:
        same[each.sha256].append(each.path)
    return [paths for paths in same.values() if len(paths) > 1]


@catalogue.step
def totals(described: list[Described]) -> dict[str, Total]:
    """Add up the files of each kind, by their suffix."""
    kinds: defaultdict[str, Total] = defaultdict(Total)
    for each in described:
        total = kinds[Path(each.path).suffix or "none"]
        total.files += 1
        total.size += each.size
        total.lines += each.lines
    return dict(kinds)


@catalogue.step
def report(run: Job, totals: dict[str, Total], duplicates: list[list[str]]) -> str:
    """Write the report; under another name first, so that it is whole or not there."""
    lines = [
        f"# {Path(run.folder).name}",
        "",
        "| kind | files | bytes | lines |",
        "|---|--:|--:|--:|",
    ]
    for kind, total in sorted(totals.items()):
        lines.append(f"| {kind} | {total.files} | {total.size} | {total.lines} |")
    lines += ["", f"{len(duplicates)} file(s) have copies."]
    lines += [f"- {' = '.join(Path(path).name for path in paths)}" for paths in duplicates]
    text = "\n".join(lines) + "\n"
    unfinished = Path(f"{run.report}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(run.report)
    return text


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("report", type=Path, nargs="?")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--again", action="store_true", help="catalogue the folder once more")
    parser.add_argument("--graph", action="store_true", help="print the flow as a diagram")
    options = parser.parse_args()
    if options.graph:
        print(catalogue.to_mermaid())
        return
    if options.folder is None or options.report is None or not options.folder.is_dir():
        parser.error("give a folder, and where to write the report")
    folder, target = str(options.folder.resolve()), str(options.report.resolve())
    key = hashlib.sha256(f"{folder} {target}".encode()).hexdigest()
    if options.again:
        key += os.urandom(4).hex()
    async with local(app) as client:
        job = Job(folder, target, 0.5 if options.slow else 0.0)
        handle = await client.start(catalogue, job, key=key)
        print("continuing" if handle.already_existed else "started", handle.run_id, flush=True)
        output = await handle.result()
        print(output["report"])


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        raise SystemExit("stopped; the run continues once a worker is there again") from None
