"""Transactions of DBOS's datasource. Runs in DBOS's own environment, for `transactions`.

`python transactions_dbos.py URL CALLS STATEMENTS`. For each line that it reads, it runs a workflow
of so many transactions, one after another, and prints the seconds. The isolation is that of the
other ways.
"""

from __future__ import annotations

import asyncio
import sys
import time

import sqlalchemy
from dbos import DBOS, AsyncSQLAlchemyDatasource, DBOSConfig

INSERT = sqlalchemy.text("insert into public.bench_bookings (room) values (:room)")


async def main(url: str, calls: int, statements: int) -> None:
    """Do what the lines ask for."""
    config: DBOSConfig = {"name": "bench", "system_database_url": url, "sys_db_pool_size": 20}
    DBOS(config=config)
    driver = sqlalchemy.make_url(url).set(drivername="postgresql+psycopg")
    text = driver.render_as_string(hide_password=False)
    source = await AsyncSQLAlchemyDatasource.create(text)

    @source.transaction(isolation_level="READ COMMITTED")
    async def book(room: int) -> int:
        for number in range(statements):
            await source.sql_session().execute(INSERT, {"room": room + number})
        return room

    @DBOS.workflow()
    async def book_all(calls: int) -> None:
        for room in range(calls):
            await book(room)

    DBOS.launch()
    await book_all(1)
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        began = time.perf_counter()
        await book_all(calls)
        print(time.perf_counter() - began, flush=True)
    DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
