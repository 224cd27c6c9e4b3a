"""The client for programs without an event loop.

`base`, `docs` and `portal` are written by hand: `portal` runs the asynchronous client on a thread
of its own, `base` opens, closes and calls it, `docs` has its documentation. All other modules are
generated from `holdfast.client`.
"""

from holdfast.sync.client import SyncClient
from holdfast.sync.handle import SyncRunHandle
from holdfast.sync.message import SyncMessage

__all__ = ["SyncClient", "SyncMessage", "SyncRunHandle"]
