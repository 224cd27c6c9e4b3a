"""What the programs of the chaos and those who hold them to account have in common."""

from __future__ import annotations

from typing import Final

STREAM: Final = "tokens"
TOKENS: Final = 8  # of each of the two that write to a stream
EVENT: Final = "chaos.placed"
PARCELS: Final = "parcels"
FIFO: Final = "moves"
WORDS: Final = 3  # of a run to another one
NEWS: Final = "chaos-news"  # with the number of the run that waits for it
STARTING: Final = "orders"  # each of its messages starts a run
GROUPS: Final = 4  # of the queue in which they keep their order
SIDE: Final = "side"
NARROW: Final = "crash/narrow"
AT_ONCE: Final = 2  # runs of it
TICKING: Final = "chaos/tick-"
SCHEDULES: Final = 3
READERS: Final = ("client", "server")
CALLER: Final = {"Authorization": "Bearer none"}  # the server lets any caller in
