"""The Absurd worker: the benchmark's workflows as tasks. Runs in Absurd's own environment.

One process with several SDK clients, each with a connection and a thread of its own: one
client executes all its tasks over one connection, which halves the throughput.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from typing import Any

from absurd_sdk import Absurd, AsyncAbsurd, AsyncTaskContext, TaskContext

QUEUE = "bench"


def work(i: int) -> dict[str, Any]:
    return {"step": i, "ok": True}


def many(params: dict[str, Any], ctx: TaskContext) -> int:
    for i in range(int(params["n"])):
        ctx.step(f"work{i}", lambda i=i: work(i))
    return params["n"]


def gated(params: dict[str, Any], ctx: TaskContext) -> int:
    many(params, ctx)
    ctx.await_event(f"go:{ctx.task_id}")
    return params["n"]


def nap(params: dict[str, Any], ctx: TaskContext) -> float:
    due = ctx.step("due", time.time) + params["n"]
    ctx.sleep_until("nap", due)
    return time.time() - due  # not in a step: its lookup would count as lateness


def long(params: dict[str, Any], ctx: TaskContext) -> list[float]:
    moments = [ctx.step(f"step{i}", time.time) for i in range(int(params["n"]))]
    ctx.await_event(f"go:{ctx.task_id}")
    return [moments[0], moments[100], moments[-100], moments[-1]]


async def fan(params: dict[str, Any], ctx: AsyncTaskContext) -> int:
    async def one(i: int) -> dict[str, Any]:
        return work(i)

    count = int(params["n"])
    await asyncio.gather(*(ctx.step(f"work{i}", lambda i=i: one(i)) for i in range(count)))
    return params["n"]


def serve(url: str, name: str, batch: int, poll: float) -> None:
    client = Absurd(url, queue_name=QUEUE)
    for task in (many, gated, nap, long):
        client.register_task(task.__name__)(task)
    client.start_worker(worker_id=name, batch_size=batch, poll_interval=poll)


async def serve_fan(url: str, batch: int, poll: float) -> None:
    client = AsyncAbsurd(url, queue_name=QUEUE)
    client.register_task("fan")(fan)
    await client.start_worker(worker_id="fan", concurrency=batch, poll_interval=poll)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--clients", type=int, default=10, help="0: the asynchronous client")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--poll", type=float, default=0.01)
    options = parser.parse_args()
    if options.clients == 0:
        asyncio.run(serve_fan(options.database, options.batch, options.poll))
        return
    for number in range(options.clients):
        arguments = (options.database, f"client{number}", options.batch, options.poll)
        threading.Thread(target=serve, args=arguments).start()


if __name__ == "__main__":
    main()
