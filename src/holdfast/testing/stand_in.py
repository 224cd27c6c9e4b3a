"""The store of an environment, in place of the databases of clients in its resources and steps."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.store.opening import STAND_IN
from holdfast.store.port import Store


class StandIn:
    """Gives the store of an environment to clients that are opened while it is given."""

    def __init__(self, line: Store, store: Store) -> None:
        """Give the `line` to the store, which plans can cut, to clients on the test's own loop.

        Those on another, as a SyncClient, get the store itself: any thread may call it.
        """
        self._line, self._store = line, store
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def given(self) -> Generator[None]:
        """Give it to clients that are opened in the block, or in tasks that are begun there."""
        self._loop = asyncio.get_running_loop()
        before = STAND_IN.set(self._get)
        try:
            yield
        finally:
            STAND_IN.reset(before)

    def _get(self) -> Store:
        return self._line if asyncio.get_running_loop() is self._loop else self._store
