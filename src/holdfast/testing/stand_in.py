"""The store of an environment, in place of the databases of clients in its resources and steps."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.errors import ConfigurationError
from holdfast.store.opening import STAND_IN
from holdfast.store.port import Store


class StandIn:
    """Gives a store of one event loop to the clients that are opened there."""

    def __init__(self, store: Store) -> None:
        self._store = store
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
        """Return the store. Raises ConfigurationError on another event loop."""
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigurationError(
                "a SyncClient, or a client on an event loop of its own, cannot be opened by a "
                "resource or a step in `Environment`: its calls would not reach the test. Replace "
                "the resource, `with resource.override(…)` around the environment, or the step, "
                "`environment.replace(step, …)`; or use `local(app, database)` in this test"
            )
        return self._store
