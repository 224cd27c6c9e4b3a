"""Several databases as one store: each run lives in one of them.

`homes` computes where a new run belongs, `places` knows where a run is, `members` holds the
databases, and `silence` ends calls to one that does not answer. `routes` says of each call of the
port how it reaches them, `router` makes the calls, and `store` has those that it cannot make alike.
`forwarding` brings what one shard has for others to them. `changing` adds shards, to which
`copying` brings what was set by hand, and closes them.
"""

from __future__ import annotations

from holdfast.store.shards.changing import add_shards, close_shard
from holdfast.store.shards.forwarding import Pass
from holdfast.store.shards.members import Members
from holdfast.store.shards.store import NO_OBJECTS, sharded, shards_of

__all__ = ["NO_OBJECTS", "Members", "Pass", "add_shards", "close_shard", "sharded", "shards_of"]
