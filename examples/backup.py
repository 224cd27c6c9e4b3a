"""Copy a folder with checksums: retries, a fan-out with a limit, and clean-up when cancelled.

    python examples/backup.py SOURCE TARGET

Every file is copied, read back and compared. Run it again after a kill: what was verified is
not copied again. Ctrl-C leaves the run where it is; `--cancel` ends it and removes the copies.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from holdfast import App, Context, Retry, RunCancelled, current_step, local

app = App("backup")

AT_ONCE = 8


@dataclass
class Backup:
    """From where to where."""

    source: str
    target: str


@dataclass
class Copied:
    """One verified file."""

    path: str
    size: int
    sha256: str


class Mismatch(Exception):
    """The copy differs from its source."""


@app.step
def scan(source: str) -> list[str]:
    """Return the paths of all files below the source, relative to it."""
    root = Path(source)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@app.step(retry=Retry(attempts=4, base="200ms"), timeout="5m")
def copy_verified(backup: Backup, path: str) -> Copied:
    """Copy one file through a temporary name, and compare what arrived."""
    source, target = Path(backup.source, path), Path(backup.target, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.part{current_step().attempt}")
    shutil.copyfile(source, partial)
    digest = checksum(source)
    if checksum(partial) != digest:
        partial.unlink()
        raise Mismatch(path)
    partial.replace(target)
    return Copied(path, target.stat().st_size, digest)


@app.step
def remove(target: str, paths: list[str]) -> int:
    """Remove copies; return how many there were."""
    found = [Path(target, path) for path in paths if Path(target, path).exists()]
    for path in found:
        path.unlink()
    return len(found)


@app.workflow
async def back_up(ctx: Context, backup: Backup) -> list[Copied]:
    """Copy everything, a few files at once; remove the copies if it is cancelled."""
    paths = await scan(backup.source)
    gate = asyncio.Semaphore(AT_ONCE)

    async def copy(path: str) -> Copied:
        async with gate:
            return await copy_verified(backup, path)

    try:
        async with asyncio.TaskGroup() as group:
            copies = [group.create_task(copy(path)) for path in paths]
    except asyncio.CancelledError:
        await remove(backup.target, paths)
        raise
    return [task.result() for task in copies]


def checksum(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--cancel", action="store_true")
    options = parser.parse_args()
    if not options.source.is_dir():
        parser.error(f"{options.source} is not a folder")
    backup = Backup(str(options.source.resolve()), str(options.target.resolve()))
    async with local(app) as client:
        key = f"{backup.source} -> {backup.target}"
        handle = await client.start(back_up, backup, key=key)
        if options.cancel:
            await handle.cancel("asked for on the command line")
        try:
            copied = await handle.result()
        except RunCancelled:
            print("cancelled, copies removed")
            return
        size = sum(file.size for file in copied)
        print(f"{len(copied)} files, {size:,} bytes, all verified")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        raise SystemExit("stopped; the run continues once a worker is there again") from None
