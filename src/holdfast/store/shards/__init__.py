"""Several databases as one store: each run lives in one of them.

`homes` computes where a new run belongs, `places` knows where a run is, `members` holds the
databases, `routes` says of each call of the port how it reaches them, `router` makes the calls, and
`store` has those that it cannot make alike. `forwarding` brings what one shard has for others to
them, and `adding` makes databases shards.
"""

from __future__ import annotations

from holdfast.store.shards.adding import add_shards
from holdfast.store.shards.forwarding import Pass
from holdfast.store.shards.members import Members
from holdfast.store.shards.store import NO_OBJECTS, sharded, shards_of

__all__ = ["NO_OBJECTS", "Members", "Pass", "add_shards", "sharded", "shards_of"]
