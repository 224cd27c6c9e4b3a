"""Durable workflows with a store of one's own: logs in SQLite, no PostgreSQL, no worker.

python embedded_core.py orders.db start 7       # charges, then waits for a signal
python embedded_core.py orders.db packed RUN    # sends it, and drives the run to its end
python embedded_core.py orders.db log RUN
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Sequence
from uuid import UUID, uuid4

from holdfast import App, Context
from holdfast.core import Event, LogConflict, drive, signal_received, started

app = App("orders")


@app.step
async def charge(order: int) -> str:
    print(f"charging order {order}")
    return f"receipt-{order}"


@app.workflow
async def checkout(ctx: Context, order: int) -> str:
    receipt = await charge(order)
    parcel = await ctx.wait_for_signal("packed", type=str)
    return f"{receipt}, {parcel}"


ENDS = ("WorkflowCompleted", "WorkflowFailed", "WorkflowCanceled")


class SqliteLogs:
    """Logs in SQLite: the primary key decides who appends."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute(
            "create table if not exists events (run_id text, idx int, type text, key text,"
            " details text, at int, primary key (run_id, idx))"
        )

    def read(self, run_id: UUID, since: int = 0) -> list[Event]:
        rows = self._db.execute(
            "select type, key, details, at from events where run_id = ? and idx >= ? order by idx",
            (str(run_id), since),
        )
        return [Event(*row) for row in rows]

    def append(self, run_id: UUID, expected: int, events: Sequence[Event]) -> None:
        rows = [
            (str(run_id), expected + place, each.type, each.key, each.details, each.at)
            for place, each in enumerate(events)
        ]
        try:
            with self._db:
                self._db.execute("begin immediate")
                tail = self.read(run_id, expected)
                if tail:
                    raise LogConflict(run_id, expected, tail)
                self._db.executemany("insert into events values (?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError:
            raise LogConflict(run_id, expected, self.read(run_id, expected)) from None


async def main(path: str, action: str, argument: str) -> None:
    store = SqliteLogs(path)
    if action == "start":
        run_id = uuid4()
        store.append(run_id, 0, [started(checkout, int(argument))])
    else:
        run_id = UUID(argument)
    log = store.read(run_id)
    if action != "log" and log[-1].type in ENDS:
        print(f"{run_id} has ended ({log[-1].type}) and accepts nothing more")
        return
    if action == "packed":
        store.append(run_id, len(log), [signal_received("packed", "parcel 1", id="packed")])
    if action == "log":
        for index, event in enumerate(log):
            print(index, event.type, event.key or "", event.details or "")
        return
    todo = await drive(checkout, run_id, store)
    if todo.ended is not None:
        print(f"{run_id} {todo.ended.status}: {todo.ended.output}")
    else:
        print(f"{run_id} waits for {', '.join(todo.waits_for)}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
