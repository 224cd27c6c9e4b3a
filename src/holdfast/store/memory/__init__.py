"""The in-memory store: the executable model of the store port.

It does no I/O, keeps its tables in dicts and runs on a clock that tests move. `PostgresStore`
must answer as this one does; if the two differ, one of them is wrong. It serves tests and
experiments: its runs end with the process.

Each capability is a part in a file of its own, flows in a folder; `store` composes the parts.
`database` is the base of all parts, and `tables` has the rows and the changes that several parts
make. `children` carries out commands to other runs, `ends` does what follows from the end of a run,
`retries` finds the calls that a retry makes again, and `payloads` refuses values that a database
refuses.
"""

from holdfast.store.memory.clock import VirtualClock, wall_clock
from holdfast.store.memory.store import MemoryStore

__all__ = ["MemoryStore", "VirtualClock", "wall_clock"]
