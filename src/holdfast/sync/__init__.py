"""The client for programs without an event loop.

`client`, `observing` and `handle` are generated; `portal` runs the asynchronous client on a
thread of its own, and `base` opens and closes it.
"""

from holdfast.sync.client import SyncClient
from holdfast.sync.handle import SyncRunHandle

__all__ = ["SyncClient", "SyncRunHandle"]
