"""What a transactional step costs beside the same transaction without holdfast, and beside DBOS.

`python -m benchmarks.transactions [--rounds N] [--calls N] [--statements N] [--database URL]
[--no-peer]`. In each round, all ways take turns: the transaction alone, on a connection of a pool;
the floor of what records it, without a worker or a workflow, where the message of the commit also
locks a row and inserts one; a transactional step; a plain step that makes the transaction itself,
which records its result by a second commit; the same with a session of SQLAlchemy; DBOS's
datasource, in a process of its own. One call follows another, in one run. A transaction inserts
rows, one a statement. The figures are medians over the rounds of milliseconds a call, and the
median of the ratios of each round to the transaction alone, on the same library.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from benchmarks.engines import CANDIDATES
from benchmarks.runner import CACHE
from benchmarks.server import Server, alone, serve
from holdfast import App, Client, Context, local
from holdfast.database.migrate import prepare_schema

DATABASE = "bench_transactions"
TABLE = "create table public.bench_bookings (room int)"
# The least that records a step with its data: the lease is locked, and the log gets a row.
FLOOR = (
    "create table public.bench_leases (run_id uuid primary key, worker text, lease_no int)",
    "create table public.bench_log"
    " (run_id uuid, idx int, key text, details json, primary key (run_id, idx))",
    """
    create function public.bench_record(p_run uuid, p_lease int, p_idx int, p_details json)
    returns int language plpgsql as $$
    begin
        perform from public.bench_leases
        where run_id = p_run and lease_no = p_lease for no key update;
        if not found then raise exception 'not held'; end if;
        insert into public.bench_log values (p_run, p_idx, 'book', p_details);
        return p_idx;
    end $$
    """,
)
INSERT = "insert into public.bench_bookings (room) values ($1)"
INSERT_TEXT = text("insert into public.bench_bookings (room) values (:room)")

app = App("bench-transactions")
pools: list[asyncpg.Pool] = []
sessions: list[async_sessionmaker[AsyncSession]] = []


@dataclass(frozen=True)
class Size:
    """How many calls, and statements of each."""

    calls: int
    statements: int


async def insert(connection: asyncpg.Connection, room: int, statements: int) -> int:
    for number in range(statements):
        await connection.execute(INSERT, room + number)
    return room


async def insert_by(session: AsyncSession, room: int, statements: int) -> int:
    for number in range(statements):
        await session.execute(INSERT_TEXT, {"room": room + number})
    return room


async def book_alone(room: int, statements: int) -> int:
    async with pools[0].acquire() as connection, connection.transaction():
        return await insert(connection, room, statements)


async def book_on_the_floor(run_id: UUID, room: int, statements: int) -> int:
    async with pools[0].acquire() as connection:
        await connection.execute("begin")
        result = await insert(connection, room, statements)
        await connection.execute(
            f"select public.bench_record('{run_id}', 1, {room}, '{result}'); commit"
        )
        return result


async def floor(calls: int, statements: int) -> None:
    """Make each transaction with a row in the log of one run, by hand."""
    run_id = uuid4()
    await pools[0].execute("insert into public.bench_leases values ($1, 'worker', 1)", run_id)
    await by_hand(calls, lambda n: book_on_the_floor(run_id, n, statements))


async def book_alone_by_session(room: int, statements: int) -> int:
    async with sessions[0].begin() as session:
        return await insert_by(session, room, statements)


@app.transaction
async def book(connection: asyncpg.Connection, room: int, statements: int) -> int:
    return await insert(connection, room, statements)


@app.transaction
async def book_by_session(session: AsyncSession, room: int, statements: int) -> int:
    return await insert_by(session, room, statements)


@app.step
async def book_plain(room: int, statements: int) -> int:
    return await book_alone(room, statements)


@app.workflow
async def transactional(ctx: Context, size: Size) -> None:
    for room in range(size.calls):
        await book(room, size.statements)


@app.workflow
async def transactional_by_session(ctx: Context, size: Size) -> None:
    for room in range(size.calls):
        await book_by_session(room, size.statements)


@app.workflow
async def plain(ctx: Context, size: Size) -> None:
    for room in range(size.calls):
        await book_plain(room, size.statements)


async def millis(work: Awaitable[object], calls: int) -> float:
    """Return the milliseconds that a call takes."""
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) / calls * 1e3


async def by_hand(calls: int, book: Callable[[int], Awaitable[int]]) -> None:
    for room in range(calls):
        await book(room)


@asynccontextmanager
async def peer(
    url: str, calls: int, statements: int
) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Run DBOS's side; what is given asks it for a round, and returns the seconds."""
    python = await asyncio.to_thread(CANDIDATES["dbos"].install, CACHE)
    script = Path(__file__).with_name("transactions_dbos.py")
    process = await asyncio.create_subprocess_exec(
        *map(str, (python, script, url, calls, statements)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    given, answers = process.stdin, process.stdout

    async def ask() -> str:
        given.write(b"\n")
        return (await answers.readline()).decode()

    try:
        if not await answers.readline():
            raise SystemExit("DBOS's side has ended: run transactions_dbos.py by hand")
        yield ask
    finally:
        given.close()
        await process.wait()


async def measure(
    client: Client, options: argparse.Namespace, ask: Callable[[], Awaitable[str]] | None
) -> dict[str, list[float]]:
    """Return the milliseconds of a call in each round, by way; the first round is not counted."""
    calls, statements = options.calls, options.statements
    size = Size(calls, statements)
    ways: dict[str, Callable[[], Awaitable[object]]] = {
        "the transaction alone": lambda: by_hand(calls, lambda n: book_alone(n, statements)),
        "the floor of its record": lambda: floor(calls, statements),
        "a transactional step": lambda: client.run(transactional, size),
        "a plain step with its own": lambda: client.run(plain, size),
        "SQLAlchemy, alone": lambda: by_hand(calls, lambda n: book_alone_by_session(n, statements)),
        "SQLAlchemy, a transactional step": lambda: client.run(transactional_by_session, size),
    }
    if ask is not None:
        ways["SQLAlchemy, DBOS's datasource"] = ask
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds + 1):
        for name, work in ways.items():
            took = await millis(work(), calls)
            if number:
                found[name].append(took)
    return found


def report(found: dict[str, list[float]]) -> None:
    """Print what each way takes, beside the transaction alone on its library."""
    for name, took in found.items():
        base = found["SQLAlchemy, alone" if "SQLAlchemy" in name else "the transaction alone"]
        ratio = statistics.median(a / b for a, b in zip(took, base, strict=True))
        print(f"{name:34} {statistics.median(took):7.3f} ms  x {ratio:.2f}")


async def run(server: Server, options: argparse.Namespace) -> None:
    """Measure in new databases, ours and DBOS's."""
    url = await asyncio.to_thread(server.fresh_database, DATABASE)
    peers = await asyncio.to_thread(server.fresh_database, f"{DATABASE}_dbos")
    await prepare_schema(url)
    for each in (url, peers):
        connection = await asyncpg.connect(each)
        for statement in (TABLE, *FLOOR):
            await connection.execute(statement)
        await connection.close()
    pools.append(await asyncpg.create_pool(url, min_size=1, max_size=4))
    engine = create_async_engine(make_url(url).set(drivername="postgresql+asyncpg"))
    sessions.append(async_sessionmaker(engine, expire_on_commit=False))
    async with local(app, url) as client:
        if options.no_peer:
            report(await measure(client, options, None))
        else:
            async with peer(peers, options.calls, options.statements) as ask:
                report(await measure(client, options, ask))
    await engine.dispose()
    await pools[0].close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--statements", type=int, default=1, help="of each transaction")
    parser.add_argument("--database")
    parser.add_argument("--no-peer", action="store_true", help="measure holdfast alone")
    options = parser.parse_args()
    with alone(CACHE), serve(options.database, CACHE / "home") as server:
        asyncio.run(run(server, options))
        server.drop_database(DATABASE)
        server.drop_database(f"{DATABASE}_dbos")


if __name__ == "__main__":
    main()
