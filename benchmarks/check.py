"""`holdfast check` over many open runs: `python -m benchmarks.check [--runs 10000] [--entries 20]`.

All runs have the log of one that was really executed, in an embedded database of their own. The
role of the check may only read.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import asyncpg

from holdfast import App, Client, local
from holdfast.database.migrate import prepare_schema
from holdfast.database.resolve import resolve_database

APP = """\
from holdfast import App, Context

app = App("checked")


@app.step
async def {step}(number: int) -> str:
    return f"done {{number}}"


@app.workflow
async def order(ctx: Context, steps: int) -> None:
    for number in range(steps):
        await {step}(number)
    await ctx.wait_for_signal("packed")
"""
_OWN = 2  # entries that are not of steps: the start, and the suspension

# A run waits with the log of another: the bar is about reading and replaying.
_COPY = """
insert into holdfast.events (run_id, idx, event_type, key, details, at)
select r.run_id, e.idx, e.event_type, e.key, e.details, e.at
from holdfast.runs r cross join holdfast.events e
where r.name = 'checked/order' and r.run_id <> $1 and e.run_id = $1 and e.idx > 0
"""
_READER = """
create role reader login;
grant usage on schema holdfast to reader;
grant select on all tables in schema holdfast to reader;
"""


async def fill(url: str, runs: int, entries: int, app: App) -> None:
    """Make open runs: execute one, and copy its log to the others, which wait for a year."""
    async with local(app, database=url) as worker:
        first = (await worker.start("order", entries - _OWN)).run_id
        async with asyncio.timeout(60), Client(url) as client:
            while (await client.runs.get(first)).state != "waiting":
                await asyncio.sleep(0.05)
    async with Client(url) as client:
        for begin in range(1, runs, 1000):
            count = min(1000, runs - begin)
            await asyncio.gather(
                *(client.start("checked/order", entries - _OWN, delay="365d") for _ in range(count))
            )
    connection = await asyncpg.connect(url)
    await connection.execute(_COPY, first)
    await connection.execute(_READER)
    await connection.execute("analyze")
    await connection.close()


def check(url: str, module: Path, jobs: int) -> tuple[float, int, str]:
    """Return how long a check takes, its exit code, and what it says last."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "holdfast", "check", str(module), "--database", url]
    done = subprocess.run([*command, "--jobs", str(jobs)], capture_output=True, text=True)
    return time.perf_counter() - began, done.returncode, done.stderr.strip().splitlines()[-1]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=10_000)
    options.add_argument("--entries", type=int, default=20)
    given = options.parse_args()
    module: dict[str, object] = {"__name__": "checked"}
    exec(APP.format(step="work"), module)
    app = module["app"]
    assert isinstance(app, App)
    with (
        tempfile.TemporaryDirectory() as folder,
        resolve_database(None, Path(folder, "home")) as database,
    ):
        asyncio.run(prepare_schema(database.url, "holdfast"))
        asyncio.run(fill(database.url, given.runs, given.entries, app))
        reads = re.sub("//[^@/]*@", "//reader@", database.url)
        for name in ("work", "renamed"):
            file = Path(folder, f"{name}.py")
            file.write_text(APP.format(step=name), encoding="utf-8")
            for jobs in (1, 2):
                took, code, said = check(reads, file, jobs)
                print(f"{name}, --jobs {jobs}: {took:.1f} s, exit code {code}: {said}", flush=True)


if __name__ == "__main__":
    main()
