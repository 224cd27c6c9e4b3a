"""What streams cost: tokens at the speed of models, as fast as they can be written, and deleted.

`python -m benchmarks.token_streams [--seconds N] [--no-peer]`. First 100 runs write 100 tokens a
second each, beside 100 runs that write none, and readers take the time from the write to the read.
Then 100 runs write as fast as they can, beside DBOS. At last a million chunks are deleted with
their runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from benchmarks.budgets import percentile
from benchmarks.engine import WorkerSetting
from benchmarks.engines import CANDIDATES
from benchmarks.runner import CACHE
from benchmarks.server import Server, alone, serve
from benchmarks.worker import WorkerProcess, cpu_seconds
from holdfast import App, Client, Context, current_step
from holdfast.client import RunHandle

RUNS, READERS, PAUSE_SECONDS = 100, 10, 0.01
FAST_TOKENS, PEER_TOKENS = 5_000, 100
DELETED_RUNS, CHUNKS_EACH = 1_000, 1_000
DATABASE = "bench_token_streams"

app = App("bench")


@app.step
async def speak(tokens: int, pause: float, *, writes: bool) -> int:
    out = current_step().stream("tokens", type=float)
    begin = time.monotonic()
    for number in range(tokens):
        if writes:
            await out.write(time.time())
        if pause:  # at a steady rate, however long a write takes
            await asyncio.sleep(begin + (number + 1) * pause - time.monotonic())
        elif number % 100 == 99:
            await asyncio.sleep(0)
    return tokens


@dataclass
class Talk:
    """How many tokens, how long after each, and if they are written."""

    tokens: int
    pause: float = 0.0
    writes: bool = True


@app.workflow
async def talk(ctx: Context, talk: Talk) -> int:
    return await speak(talk.tokens, talk.pause, writes=talk.writes)


async def measure_rate(pid: int, worker: WorkerProcess, client: Client, seconds: float) -> None:
    """Write at the speed of models; print what it costs, and how late readers are."""
    tokens, costs = int(seconds / PAUSE_SECONDS), dict[bool, tuple[float, float]]()
    late: list[float] = []

    async def read(handle: RunHandle[object]) -> None:
        async for written_at in handle.stream("tokens", type=float):
            late.append(time.time() - written_at)

    for writes in (False, True):
        await asyncio.sleep(1)
        used = cpu_seconds(process=pid), worker.cpu_seconds()
        handles = [
            await client.start(talk, Talk(tokens, PAUSE_SECONDS, writes)) for _ in range(RUNS)
        ]
        readers = [asyncio.create_task(read(each)) for each in handles[:READERS]] if writes else []
        for handle in handles:
            await handle.result()
        now = cpu_seconds(process=pid), worker.cpu_seconds()
        costs[writes] = now[0] - used[0], now[1] - used[1]
        await asyncio.gather(*readers)
    (quiet, worker_quiet), (writing, worker_writing) = costs[False], costs[True]
    print(f"server, {RUNS} runs with 100 tokens/s: {writing / seconds * 100:.1f} % of a core")
    print(f"server, the same without writes: {quiet / seconds * 100:.1f} % of a core")
    each = (worker_writing - worker_quiet) / (RUNS * tokens) * 1e6
    print(f"worker, beside runs that write nothing: {each:.1f} µs a token")
    print(f"write to read, p50: {percentile(late, 50) * 1e3:.1f} ms")
    print(f"write to read, p99: {percentile(late, 99) * 1e3:.1f} ms")


async def measure_speed(pid: int, worker: WorkerProcess, client: Client) -> None:
    """Write as fast as possible."""
    tokens = RUNS * FAST_TOKENS
    used = cpu_seconds(process=pid) + worker.cpu_seconds()
    began = time.perf_counter()
    for handle in [await client.start(talk, Talk(FAST_TOKENS)) for _ in range(RUNS)]:
        await handle.result()
    seconds = time.perf_counter() - began
    used = cpu_seconds(process=pid) + worker.cpu_seconds() - used
    print(f"holdfast: {tokens / seconds:,.0f} tokens/s, {used / tokens * 1e6:.1f} µs a token")


def measure_peer(server: Server) -> None:
    """Let DBOS write as fast as it can."""
    peer = CANDIDATES["dbos"]
    python, url = peer.install(CACHE), server.fresh_database(DATABASE)
    script = Path(__file__).with_name("token_streams_dbos.py")
    used = cpu_seconds(process=server.process_id())
    command = [str(python), str(script), url, str(RUNS), str(PEER_TOKENS)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if answer.returncode != 0:
        print(f"dbos: failed: {answer.stderr.strip()[-500:]}")
        return
    told = json.loads(answer.stdout.strip().splitlines()[-1])
    used = cpu_seconds(process=server.process_id()) - used + told["cpu"]
    tokens, seconds = told["tokens"], told["seconds"]
    print(
        f"{peer.requirements[0]}: {tokens / seconds:,.0f} tokens/s, "
        f"{used / tokens * 1e6:.1f} µs a token"
    )


async def measure_deletion(url: str, client: Client) -> None:
    """Delete a million chunks with their runs."""
    connection = await asyncpg.connect(url)
    await connection.execute(
        f"""
        insert into holdfast.runs (run_id, name, version, queue, priority, status, input,
            created_at, completed_at, delete_after)
        select ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 'bench/talk', 1,
            'bench', 2, 'completed', '1', now(), now(), now()
        from generate_series(1, {DELETED_RUNS}) as n;
        insert into holdfast.streams (run_id, name, items, chunks, bytes)
        select r.run_id, 'tokens', {CHUNKS_EACH}, {CHUNKS_EACH}, 1 from holdfast.runs r
        where r.queue = 'bench';
        insert into holdfast.stream_chunks (run_id, name, last_offset, count, key, lease_no,
            attempt, closes, bytes, items)
        select r.run_id, 'tokens', n, 1, 'speak', 1, 1, false, 40, to_json(array[repeat('x', 40)])
        from holdfast.runs r, generate_series(1, {CHUNKS_EACH}) as n where r.queue = 'bench';
        """
    )
    await connection.execute("vacuum analyze")
    began = time.perf_counter()
    await client.retention.sweep()
    seconds = time.perf_counter() - began
    left = await connection.fetchval(
        "select count(*) from holdfast.stream_chunks where run_id::text like '00000000-0000-7%'"
    )
    assert left == 0, left
    print(f"deleted: {DELETED_RUNS * CHUNKS_EACH / seconds:,.0f} chunks/s")
    await connection.close()


async def measure(pid: int, url: str, seconds: float) -> None:
    """Measure holdfast."""
    engine = CANDIDATES["holdfast"].load(url)
    await engine.open()  # migrates
    command = engine.worker_command(WorkerSetting())
    command = [
        each.replace("benchmarks.holdfast_app", "benchmarks.token_streams") for each in command
    ]
    with WorkerProcess(command, CACHE / "token_streams.log") as worker:
        async with Client(url, app=app) as client:
            await (await client.start(talk, Talk(10))).result(timeout=60)
            await measure_rate(pid, worker, client, seconds)
            await measure_speed(pid, worker, client)
            await measure_deletion(url, client)
    await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--no-peer", action="store_true", help="measure holdfast alone")
    options = parser.parse_args()
    with alone(CACHE), serve(None, CACHE / "home") as server:
        url = server.fresh_database(DATABASE)
        asyncio.run(measure(server.process_id(), url, options.seconds))
        if not options.no_peer:
            measure_peer(server)
        server.drop_database(DATABASE)


if __name__ == "__main__":
    main()
