"""The command: `python -m tests.simulation --seeds 0-9999`."""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing import Pool

from tests.simulation.model import Violation
from tests.simulation.plan import Plan, command
from tests.simulation.planted import PLANTED
from tests.simulation.search import find, shrink
from tests.simulation.world import run_seed

_CHUNK = 25


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds; return 1 if one of them fails."""
    given = _read(arguments)
    if given.planted is not None:
        return _search(given.planted or list(PLANTED))
    if len(given.seeds) == 1:
        return _one(given.seeds[0], frozenset(given.without), verbose=given.verbose)
    return _many(given.seeds, given.jobs)


def _read(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=_range, default=range(300), help="one, or FIRST-LAST")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument(
        "--without", type=lambda text: text.split(","), default=[], help="parts of a seed to omit"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print the history of a seed")
    parser.add_argument(
        "--planted", nargs="*", help="search the first seed that finds each planted fault"
    )
    return parser.parse_args(arguments)


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _one(seed: int, without: frozenset[str], *, verbose: bool) -> int:
    broken, digest = run_seed(Plan(seed, without), print if verbose else None)
    plan = Plan(seed, without)
    print(f"seed {seed}: {', '.join(plan.parts())}; digest {digest}")
    if broken is None:
        return 0
    print(broken)
    if not without:
        smallest = shrink(seed, broken)
        print(f"The same with less: {command(seed, smallest)} -v")
    return 1


def _chunk(seeds: range) -> list[tuple[int, str, Violation | None]]:
    """Return each seed with its digest and what was wrong."""
    return [(seed, *reversed(run_seed(Plan(seed)))) for seed in seeds]


def _many(seeds: range, jobs: int) -> int:
    began, done, failed, digest = time.monotonic(), 0, 0, hashlib.blake2b(digest_size=16)
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    ignored = (signal.SIGINT, signal.SIG_IGN)  # by those that this process ends
    pool = Pool(jobs, signal.signal, ignored)
    try:
        for chunk in pool.imap(_chunk, chunks):
            for seed, history, broken in chunk:
                done += 1
                digest.update(history.encode())
                if broken is not None:
                    failed += 1
                    print(f"seed {seed}: {broken}\n    {command(seed)}", flush=True)
            _progress(f"{done} of {len(seeds)} seeds, {failed} failed, {_per_second(done, began)}")
    except KeyboardInterrupt:
        signal.signal(*ignored)
        print(f"\nstopped after {done} seeds, {failed} failed")
        return 130
    finally:
        pool.terminate()
    seconds = time.monotonic() - began
    print(f"{done} seeds, {failed} failed, {seconds:.0f} s; digest {digest.hexdigest()}")
    return 1 if failed else 0


def _per_second(done: int, began: float) -> str:
    return f"{done / (time.monotonic() - began):.1f} a second"


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text}  ", end="", file=sys.stderr, flush=True)


def _search(names: Sequence[str]) -> int:
    missed = 0
    for name in names:
        found = find(name)
        missed += found is None
        what = "not found" if found is None else f"seed {found[0]}: {found[1]}"
        print(f"{name}: {what}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
