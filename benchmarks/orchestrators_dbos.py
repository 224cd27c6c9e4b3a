"""DBOS with the flows of `orchestrators.py`, in its own environment; prints what they took.

`python orchestrators_dbos.py URL ROUNDS FLOWS`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from dbos import DBOS, DBOSConfig

PAUSE_SECONDS = 0.5


def fibo(n: int) -> int:
    return n if n <= 1 else fibo(n - 1) + fibo(n - 2)


@DBOS.step()
async def compute(n: int) -> float:
    """Return for how many seconds it computed."""
    began = time.perf_counter()
    fibo(n)
    return time.perf_counter() - began


@DBOS.workflow()
async def tasks(count: int, n: int) -> list[float]:
    return [await compute(n) for _ in range(count)]


async def main(url: str, rounds: int, flows: list[list[int]]) -> None:
    """Run each flow so many times; print seconds in all, and of computing, of each run."""
    config: DBOSConfig = {"name": "bench", "system_database_url": url, "sys_db_pool_size": 20}
    DBOS(config=config)
    DBOS.launch()
    await (await DBOS.start_workflow_async(tasks, 1, 1)).get_result()
    found = []
    for count, n in flows:
        runs = []
        for _ in range(rounds):
            await asyncio.sleep(PAUSE_SECONDS)
            began = time.perf_counter()
            computed = await (await DBOS.start_workflow_async(tasks, count, n)).get_result()
            runs.append((time.perf_counter() - began, sum(computed)))
        found.append(runs)
    print(json.dumps(found))
    DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])))
