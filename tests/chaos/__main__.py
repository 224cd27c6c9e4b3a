"""`python -m tests.chaos --help`."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time

from tests.chaos.program import Verdict, chaos
from tests.chaos.world import World

ABOUT = """\
Kill all that can be killed while everything runs, and look if anything was lost or repeated.

A PostgreSQL of its own, or several as one engine (--shards), workers, `holdfast server` and two
readers of streams run programs of every kind: steps, timers, signals, updates, approvals,
activities, children, flows, transactions, message queues, topics, schedules, limits, streams of
tokens. At random moments one of the processes is killed, stopped or frozen, and a PostgreSQL as
well; with --redis, Redis is flushed, killed, mute, or out of the workers' reach. In the end each
run must have ended once with its right result, each effect must be recorded or explained by a lost
worker or a retry, no message may be lost, and the readers must have seen each value of each stream
once and in order.
"""
EXAMPLES = """\
examples:
  python -m tests.chaos --minutes 1
  python -m tests.chaos --minutes 30 --redis --processes 4
  python -m tests.chaos --minutes 30 --shards 4 --processes 1
  python -m tests.chaos --minutes 1 --seed 7        the same choices again; the moments differ

It exits with 1 if something is wrong, and keeps the folder with logs and database then. Ctrl-C ends
all that was started.
"""


def main() -> None:
    options = _options()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # also behind `&`
        signal.signal(number, signal.default_int_handler)
    seed = random.randrange(10**6) if options.seed is None else options.seed
    say(f"seed {seed}")
    try:
        with World(redis=options.redis, shards=options.shards) as world:
            try:
                verdict = asyncio.run(
                    chaos(world, seed, options.minutes * 60, options.processes, say)
                )
            except Exception:
                world.keep = True
                say(f"it did not come to a verdict with seed {seed}: see {world.folder}")
                raise
            world.keep = bool(verdict.faults)
    except KeyboardInterrupt:
        raise SystemExit("interrupted: all that was started is ended") from None
    show(verdict)
    if verdict.faults:
        several = f" --shards {options.shards}" if options.shards > 1 else ""
        again = f"python -m tests.chaos --seed {seed} --minutes {options.minutes:g}"
        raise SystemExit(
            f"WRONG: {len(verdict.faults)} faults with seed {seed}; {world.folder} has the database"
            f" and the logs. Again: {again}{' --redis' if options.redis else ''}{several}"
        )
    print("RIGHT: nothing lost, nothing repeated without a reason, all streams read once")


def show(verdict: Verdict) -> None:
    """Print what was done and seen, and the faults."""
    for name, counts in (
        ("blows", verdict.blows),
        ("programs", verdict.load.counts),
        ("seen", verdict.seen),
    ):
        print(f"{name}: {', '.join(f'{count} {each}' for each, count in sorted(counts.items()))}")
    for fault in verdict.faults[:50]:
        print(f"FAULT {fault}")


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="how long things are killed")
    parser.add_argument("--seed", type=int, help="of all choices; by default a new one, printed")
    parser.add_argument("--redis", action="store_true", help="with a Redis, which fails as well")
    parser.add_argument("--processes", type=int, default=3, metavar="K", help="of workers")
    parser.add_argument("--shards", type=int, default=1, help="databases, each with such workers")
    options = parser.parse_args()
    if options.minutes <= 0 or options.processes < 1 or options.shards < 1:
        parser.error("--minutes, --processes and --shards are above 0")
    return options


if __name__ == "__main__":
    main()
