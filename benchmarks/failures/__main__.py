"""Make failures under load, and say what each costs: `python -m benchmarks.failures`."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.failures import table
from benchmarks.failures.measuring import measure, say
from benchmarks.failures.patroni import LaggingLeaderKilled, LeaderKilled
from benchmarks.failures.scenarios import PLAIN, Scenario
from benchmarks.runner import CACHE
from benchmarks.server import alone

RESULTS = Path(__file__).parent / "results.json"
SCENARIOS: tuple[type[Scenario], ...] = (*PLAIN, LeaderKilled, LaggingLeaderKilled)

ABOUT = """\
Make failures under load with real processes, and say what each costs.

Every failure has programs of its own: a PostgreSQL of the machine or of holdfast, workers, servers,
whatever it needs. A driver starts 20 runs a second, each of four steps, a sleep, a signal and an
activity, and keeps what was acknowledged to it. After the failure the load continues until all runs
that were open have ended; then the logs, the driver's notes and the traces that the steps left in a
file are held against each other. The table says, as median and worst of all tries:

  pause      the longest time after the failure in which no run made any progress
  first      of workers: until another one takes over the first of the steps that were executing
  last       until the last run that was open at the failure has continued
  caller     the longest that a caller waited for the answer to a start, repetitions included
  lost       runs and signals that were acknowledged and are gone, results that were told and are
             not so any more
  repeated   executions of steps beyond the first
  twice      results that were recorded twice
  wrong      runs that ended otherwise than they should, or whose logs mix two histories
"""
EXAMPLES = """\
examples:
  python -m benchmarks.failures                        all but Patroni
  python -m benchmarks.failures --only worker --tries 1
  python -m benchmarks.failures --only patroni-sync --only patroni-async
  python -m benchmarks.failures --patroni --document docs/howto/high-availability.md

Results are kept in results.json beside the script, by name: a part may be measured again alone.
Ctrl-C ends all that was started.
"""


def main() -> None:
    options = _options()
    if options.list:
        for each in SCENARIOS:
            lacks = each.missing()
            note = f"; skipped: no {lacks}" if lacks else f", {each.tries} tries"
            print(f"{each.name:17} {each.title}{note}")
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        # Two that write to one file would lose results; one that writes elsewhere is a test's.
        with alone(CACHE if options.output == RESULTS else options.output.parent):
            results = _measure(options)
    except KeyboardInterrupt:
        raise SystemExit("interrupted: all that was started is ended") from None
    if options.document:
        table.write_document(results, SCENARIOS, options.document)
    names = [each.name for each in _chosen(options) if each.name in results]
    if options.json:
        print(json.dumps({name: results[name] for name in names}, indent=1))
    else:
        print(table.text({name: results[name] for name in names}))
    if any(each["wrong"] for name in names for each in results[name]["tries"]):
        raise SystemExit("some runs ended wrong: see the results")


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the results of before with those of the chosen failures, and keep them each time."""
    results: dict[str, Any] = (
        json.loads(options.output.read_text()) if options.output.exists() else {}
    )
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine.describe(options.output.parent),
        "alone": options.alone,
    }
    for scenario in _chosen(options):
        if lacks := scenario.missing():
            say(f"{scenario.name}: skipped, this machine has no {lacks}")
            continue
        tries = options.tries or scenario.tries
        version, rounds = measure(scenario, tries)
        results[scenario.name] = {"about": {**about, "postgresql": version}, "tries": rounds}
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    return results


def _chosen(options: argparse.Namespace) -> Sequence[type[Scenario]]:
    if options.only:
        return [each for each in SCENARIOS if each.name in options.only]
    return [each for each in SCENARIOS if options.patroni or not each.patroni]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.failures",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [each.name for each in SCENARIOS]
    parser.add_argument("--list", action="store_true", help="name the failures, and make none")
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help="this one; may be repeated"
    )
    parser.add_argument("--patroni", action="store_true", help="those with Patroni as well")
    parser.add_argument(
        "--tries", type=int, metavar="N", help="of each; the default is its own, see --list"
    )
    parser.add_argument(
        "--alone", action="store_true", help="note that nothing else ran on the machine"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="PATH")
    parser.add_argument(
        "--document", type=Path, metavar="PATH", help="write the table into this page as well"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
