"""Count the words of a folder of text files, file by file; resumable when killed.

    python examples/wordcount.py FOLDER [--slow]

Kill it at any moment and start it again with the same folder: files that were counted are not
read again. `--slow` pauses after each file, to give you time to do that.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from holdfast import App, Context, local

app = App("wordcount")

AT_ONCE = 4
FREQUENT = 5


@dataclass
class Job:
    """A folder to count, and the pause in seconds after each of its files."""

    folder: str
    pause: float


@dataclass
class Count:
    """What one file holds."""

    name: str
    lines: int
    words: int
    frequent: list[tuple[str, int]]


@app.step
def list_texts(folder: str) -> list[str]:
    """Return the paths of the folder's text files."""
    return sorted(str(path) for path in Path(folder).rglob("*.txt"))


@app.step(timeout="1m")
def count_words(path: str) -> Count:
    """Read one file and count what it holds."""
    print(f"reading {path}\n", end="", flush=True)  # whole, from several threads
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    words = Counter(re.findall(r"[\w']+", text.lower()))
    return Count(path, text.count("\n"), words.total(), words.most_common(FREQUENT))


@app.workflow
async def count_folder(ctx: Context, job: Job) -> list[Count]:
    """Count all files, a few at a time."""
    paths = await list_texts(job.folder)
    counts: list[Count] = []
    for first in range(0, len(paths), AT_ONCE):
        batch = paths[first : first + AT_ONCE]
        counts += await asyncio.gather(*(count_words(path) for path in batch))
        ctx.set_value("progress", {"done": len(counts), "of": len(paths)})
        if job.pause:
            await asyncio.sleep(job.pause * len(batch))
    return counts


def summary(counts: list[Count]) -> str:
    """Return a table of the files and a line for all of them."""
    lines = [f"{'words':>8} {'lines':>7}  file (most frequent words)"]
    for count in counts:
        frequent = ", ".join(f"{word} {n}" for word, n in count.frequent)
        lines.append(f"{count.words:>8} {count.lines:>7}  {Path(count.name).name} ({frequent})")
    total = sum(count.words for count in counts)
    lines.append(f"{total:>8} words in {len(counts)} files")
    return "\n".join(lines)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--again", action="store_true", help="count again, not what was counted")
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder")
    folder = str(options.folder.resolve())
    key = f"{folder} {os.urandom(4).hex()}" if options.again else folder
    async with local(app) as client:
        job = Job(folder, 0.5 if options.slow else 0.0)
        handle = await client.start(count_folder, job, key=key)
        print("continuing" if handle.already_existed else "started", handle.run_id, flush=True)
        print(summary(await handle.result()))


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        raise SystemExit("stopped; the run continues once a worker is there again") from None
