"""What a workload asks of an engine, and what it hands back."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Unit = Literal["runs/s", "steps/s", "s", "ms", "x", "% of a core", "transactions/s", "MB", "kB/run"]

AT_ONCE = 100  # runs that a worker executes at the same time, unless a workload says otherwise


@dataclass(frozen=True)
class Measurement:
    """One figure. `metric` names it in results.json; `higher` says that more is better."""

    metric: str
    title: str
    unit: Unit
    value: float
    higher: bool = False


@dataclass(frozen=True)
class WorkerSetting:
    """What a worker is set up for; `at_once` bounds the runs that a process executes at a time.

    `queue` is the one that it serves, where that is not the one of the runs. `flow` is the flow
    whose steps it runs; without one it runs workflows.

    An engine that has to choose between these gets its best for each.
    """

    kind: Literal["throughput", "latency", "fan-out"] = "throughput"
    at_once: int = AT_ONCE
    queue: str | None = None
    flow: str | None = None
    processes: int = 1


class Engine(Protocol):
    """An engine on its own fresh database, seen through its public client.

    All engines register the same workflows:
    `many(n)` runs n steps one after the other and returns n; `fan(n)` runs n steps at once;
    `gated(n)` runs n steps, waits for the signal "go" and returns; `nap(seconds)` sleeps
    and returns by how many seconds it woke too late; `keyed(key)` runs one step, and with the key
    0 waits for "go" first; `long(n)` runs n steps that read the clock,
    waits for "go", and returns the moments of the first, the 101st, the 100th last and the last
    step.

    Those that have such things, see `Candidate.missing`, also register `trip(n)`: n activities
    on the queue "side" one after the other, returns the seconds that each took; `activities(n)`:
    n activities at once; `children(n)`: n child runs of `many(1)` at once, both return how many
    completed; `crowd(n)`: n child runs of `gated(0)`; `crowds(n)`: ten child runs of
    `crowd(n / 10)`; and the flows of `flow_shapes`, which are started like workflows.
    """

    async def open(self) -> None:
        """Create the schema where it is missing, and connect the client."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...

    def worker_command(self, setting: WorkerSetting) -> list[str]:
        """Return the command line of one worker process."""
        ...

    async def start(self, workflow: str, argument: float) -> str:
        """Start one run in a transaction of its own; return its id."""
        ...

    async def start_many(self, workflow: str, arguments: Sequence[float]) -> list[str]:
        """Start runs the fastest way that the engine has."""
        ...

    async def result(self, run_id: str) -> Any:
        """Wait for a run's end and return its result."""
        ...

    async def run(self, workflow: str, argument: float) -> Any:
        """Start a run and return its output, in the engine's best way."""
        ...

    async def expect(self, run_id: str) -> Awaitable[Any]:
        """Return what gives a run's result, waiting already where the engine can."""
        ...

    async def inside_latency(self, count: int) -> float | None:
        """Return the median milliseconds from start to result for a caller in the worker's process.

        None where an engine has no shorter way for such a caller.
        """
        ...

    async def signal(self, run_id: str) -> None:
        """Send the signal "go"."""
        ...

    async def cancel_tree(self, run_id: str) -> None:
        """Cancel a run and all runs below it."""
        ...

    async def fork(self, run_id: str, steps: int) -> None:
        """Start a run that continues from another's log after so many steps."""
        ...

    async def unfinished(self) -> bool:
        """Return True if a run has not ended, cheaply enough to ask every few milliseconds."""
        ...

    async def completed(self) -> int:
        """Count the runs that ended well."""
        ...

    async def at_gate(self) -> int:
        """Count the `gated` and `long` runs that have done their steps and wait for "go"."""
        ...

    async def add_waiting(self, count: int) -> None:
        """Put `count` runs into the tables that are due in a year."""
        ...

    async def limit_keys(self, workflow: str) -> None:
        """Let one run at a time have each value of a workflow's input."""
        ...

    async def share_fairly(self) -> None:
        """Let the values of the inputs of all runs take turns."""
        ...

    async def add_blocked(self, count: int) -> None:
        """Put `count` runs of `keyed(0)` into the tables, which wait for the one that has begun."""
        ...

    async def add_ended(self, count: int, steps: int) -> None:
        """Write ended runs of so many steps whose retention is over."""
        ...

    async def sweep(self, archive: str | None = None) -> None:
        """Delete what is due; to a place for objects first, if one is given."""
        ...

    async def stored_runs(self) -> int:
        """Count the runs that are in the database."""
        ...

    async def create_schedules(self, count: int, cron: str, workflow: str) -> None:
        """Create schedules with one cron expression, in the time zone of Berlin."""
        ...

    async def subscribe(self, pattern: str, workflows: Sequence[str]) -> None:
        """Let events of topics that fit start each of these workflows, which no worker has."""
        ...

    async def add_listening(self, count: int) -> None:
        """Write runs that wait for `bench.*.paid`, each with another number as the condition."""
        ...

    async def publish(self, topic: str, payload: object) -> None:
        """Publish an event."""
        ...

    async def lateness(self) -> list[float]:
        """Return for each tick that has fired how many seconds late it was."""
        ...

    async def outputs(self, workflow: str) -> list[float]:
        """Return the outputs of the runs of a workflow that have ended."""
        ...

    async def transactions(self) -> int:
        """Return the number of transactions that the server has ended in this database."""
        ...
