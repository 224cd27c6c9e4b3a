"""The in-memory store: the executable model of the store contract.

It does no I/O, keeps its tables in dicts and runs on a clock that tests move. `PostgresStore`
must answer as this one does; where the two differ, one of them is wrong. It serves tests and
experiments: its runs end with the process.

`tables` holds the rows and the few changes that several transitions share. `starts`, `claims`,
`commits`, `guests`, `activities`, `approvals`, `control` and `forks` are the transitions (one
function a method). `orders` says what carries out an order of a run, `children` carries out those
to other runs, `ends` does what follows from the end of a run. `questions` only reads.
"""

from holdfast.store.memory.clock import VirtualClock, wall_clock
from holdfast.store.memory.store import MemoryStore

__all__ = ["MemoryStore", "VirtualClock", "wall_clock"]
