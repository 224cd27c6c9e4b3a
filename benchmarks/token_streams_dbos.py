"""DBOS's streams: steps that write tokens. Runs in DBOS's own environment, and prints what it took.

`python token_streams_dbos.py URL RUNS TOKENS`. All runs write at once, each from an asynchronous
step, which costs DBOS least: a write from a workflow is recorded as a step besides.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time

import sqlalchemy
from dbos import DBOS, DBOSConfig


@DBOS.step()
async def speak(tokens: int) -> int:
    for number in range(tokens):
        await DBOS.write_stream_async("tokens", f"token {number}")
    return tokens


@DBOS.workflow()
async def talk(tokens: int) -> int:
    return await speak(tokens)


def used() -> float:
    """Return the processor time of this process in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def main(url: str, runs: int, tokens: int) -> None:
    """Write, and print how long it took and the processor time of this process."""
    config: DBOSConfig = {"name": "bench", "system_database_url": url, "sys_db_pool_size": 20}
    DBOS(config=config)
    DBOS.launch()
    await (await DBOS.start_workflow_async(talk, 1)).get_result()
    began, cpu = time.perf_counter(), used()
    handles = [await DBOS.start_workflow_async(talk, tokens) for _ in range(runs)]
    for handle in handles:
        await handle.get_result()
    seconds, cpu = time.perf_counter() - began, used() - cpu
    engine = sqlalchemy.create_engine(sqlalchemy.make_url(url).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        count = connection.execute(sqlalchemy.text("select count(*) from dbos.streams")).scalar()
    print(json.dumps({"tokens": runs * tokens, "seconds": seconds, "cpu": cpu, "stored": count}))
    DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
