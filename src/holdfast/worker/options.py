"""How a worker works: what a program or the command line may choose."""

from __future__ import annotations

from typing import get_args

import msgspec

from holdfast.definitions.options import option
from holdfast.errors import ConfigurationError
from holdfast.runtime.turn.checking import Check
from holdfast.types.work import SILENT_SECONDS
from holdfast.values.durations import LONGEST_SECONDS
from holdfast.values.names import check_queue_name
from holdfast.values.numbers import is_a, number_within, true_or_false, whole_number
from holdfast.values.texts import several

_LEAST = {"concurrency": 1, "threads": 1, "transaction_connections": 1, "cache": 0}
_POSITIVE = ("lease_seconds", "heartbeat_seconds", "poll_seconds", "maintenance_seconds")


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works.

    `queues` empty means all queues that the app names. `concurrency` limits how many runs and
    activities the worker holds, `threads` how many sync steps and activities run at the same time,
    `transaction_connections` how many connections of each kind transactions have, `cache` how many
    suspended runs stay in memory. `check` is for tests and development: runs do not stay in memory,
    each is replayed whenever it wakes and before it ends, and calls of clocks and of random numbers
    in workflow code are warnings or errors. `replace_flows` is for development: if the shape of a
    flow has changed under the same version, it replaces the old one, and open runs of the old one
    are terminated. With `run_logs`, what the code of runs logs by `logging` is kept with the runs.
    """

    queues: tuple[str, ...] = ()
    concurrency: int = 200
    threads: int = 32
    transaction_connections: int = 10
    cache: int = 1000
    grace_seconds: float = 30.0
    lease_seconds: float = 30.0
    heartbeat_seconds: float = 2.0
    silent_seconds: float = SILENT_SECONDS
    poll_seconds: float = 2.0
    maintenance_seconds: float = 4.0
    check: Check = "no"
    replace_flows: bool = False
    run_logs: bool = False

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            whole_number(getattr(self, name), "a worker", name, least)
        for name in ("replace_flows", "run_logs"):
            true_or_false(getattr(self, name), f"a worker's {name}")
        for name in (*_POSITIVE, "grace_seconds", "silent_seconds"):
            number_within(getattr(self, name), "a worker", name, 0, LONGEST_SECONDS)
            if name in _POSITIVE and getattr(self, name) == 0:
                raise ConfigurationError(f"a worker's {name} must be more than 0")
        if self.check not in get_args(Check):
            known = ", ".join(get_args(Check))
            raise ConfigurationError(f"a worker's check is one of {known}, not {self.check!r}")
        with option("a worker", "queues"):
            queues = tuple(check_queue_name(each) for each in several("queues", self.queues))
        msgspec.structs.force_setattr(self, "queues", queues)  # given may be a list or an iterator
        if self.lease_seconds < 3 * self.heartbeat_seconds:
            raise ConfigurationError(
                f"a lease of {self.lease_seconds:g} s is too short for a heartbeat every "
                f"{self.heartbeat_seconds:g} s: it should last for three"
            )


def given_options(options: WorkerOptions | None) -> WorkerOptions:
    """Return the options of a worker, the defaults for None. Raises ConfigurationError."""
    return WorkerOptions() if options is None else is_a(WorkerOptions, options, "options")
