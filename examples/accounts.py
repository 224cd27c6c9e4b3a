"""Sort the lines of a statement into one file an account, with messages; resumable when killed.

    python examples/accounts.py STATEMENT.csv FOLDER [--slow]

The statement has a head line, and a column `account`. Kill the program at any moment and start it
again with the same arguments: each line is in its account's file once, in the order of the
statement. `--slow` pauses at each message, to give you time to do that.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path

from holdfast import App, Context, current_message, local
from holdfast.client import Client, Outgoing

app = App("accounts")

QUEUE = "statement-lines"


@dataclass
class Job:
    """A statement to sort, and its digest: other contents are another job."""

    statement: str
    folder: str
    digest: str
    pause: float


@dataclass
class Line:
    """A line of a statement. Lines are counted from 1 in each account."""

    job: Job
    account: str
    number: int
    text: str


@dataclass
class Booked:
    """What is published: an account's file has its lines up to this number."""

    account: str
    last: int


def read_lines(job: Job) -> list[Line]:
    """Return the lines of a statement. Raises KeyError if it has no column `account`."""
    last: dict[str, int] = {}
    lines: list[Line] = []
    with open(job.statement, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            account = row["account"]
            last[account] = last.get(account, 0) + 1
            lines.append(Line(job, account, last[account], ",".join(row.values())))
    return lines


@app.step
async def send_lines(job: Job) -> dict[str, int]:
    """Send each line, grouped by account; return the last number of each account.

    A line that an earlier attempt has sent is known by its id, and not sent again.
    """
    lines = read_lines(job)
    async with Client() as client:
        for at in range(0, len(lines), 500):
            part = lines[at : at + 500]
            await client.queues.send_many(
                QUEUE,
                [
                    Outgoing(
                        line,
                        group=f"{job.digest}/{line.account}",
                        dedup_id=f"{job.digest}/{line.account}/{line.number}",
                    )
                    for line in part
                ],
            )
    return {line.account: line.number for line in lines}


def append(lines: list[Line]) -> None:
    """Append lines of one account to its file, but for those that it has already.

    A group comes in its order. So what an earlier worker had appended before it was killed, and
    could not acknowledge, comes first.
    """
    path = Path(lines[0].job.folder, f"{lines[0].account}.csv")
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    missing = [line for line in lines if line.number > known.count("\n")]
    temporary = path.with_suffix(".part")  # a kill leaves the old file or the new one
    temporary.write_text(known + "".join(f"{line.text}\n" for line in missing), encoding="utf-8")
    temporary.replace(path)
    print(f"booking {path.stem} {lines[0].number} to {lines[-1].number}\n", end="", flush=True)


@app.consumer(QUEUE, batch=20, concurrency=4)
async def book(lines: list[Line]) -> None:
    """Book lines of one account, and tell the run that waits for them."""
    job, account, last = lines[0].job, lines[0].account, lines[-1].number
    await asyncio.to_thread(append, lines)
    await asyncio.sleep(job.pause * len(lines))
    async with Client() as client:
        await client.topics.publish(
            f"accounts.{job.digest}.booked",
            Booked(account, last),
            event_id=f"{current_message().id}/{last}",
        )


@app.workflow
async def sort_statement(ctx: Context, job: Job) -> dict[str, int]:
    """Send the lines, and wait until each account has all of its own."""
    topic = f"accounts.{job.digest}.booked"
    ctx.subscribe(topic)
    wanted = await send_lines(job)
    booked = dict.fromkeys(wanted, 0)
    while booked != wanted:
        event = await ctx.wait_for_event(topic, type=Booked)
        account = event.payload.account
        booked[account] = max(booked[account], event.payload.last)
        ctx.set_value("progress", {"booked": sum(booked.values()), "of": sum(wanted.values())})
    return booked


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("statement", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--slow", action="store_true")
    options = parser.parse_args()
    try:
        contents = options.statement.read_bytes()
    except OSError as error:
        parser.error(f"{options.statement} cannot be read: {error.strerror}")
    if b"account" not in contents.partition(b"\n")[0].rstrip().split(b","):
        parser.error(f"{options.statement} has no column `account`")
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = str(options.folder.resolve())
    digest = hashlib.sha256(contents + folder.encode()).hexdigest()[:16]
    job = Job(str(options.statement.resolve()), folder, digest, 0.1 if options.slow else 0.0)
    async with local(app) as client:
        await client.queues.create(QUEUE, fifo=True, visibility="10s")
        handle = await client.start(sort_statement, job, key=digest)
        print("continuing" if handle.already_existed else "started", handle.run_id, flush=True)
        for account, lines in sorted((await handle.result()).items()):
            print(f"{lines:>8} lines  {account}.csv")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        raise SystemExit("stopped; the run continues once a worker is there again") from None
