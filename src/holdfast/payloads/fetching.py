"""A store that answers with the contents of objects, where the database has references to them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from holdfast.payloads.shelf import Shelf
from holdfast.store.port import Store

_AS_STORED: Final = frozenset({"export_runs"})  # the archive fetches run by run


class FetchingStore:
    """Passes every call on to a store, and fetches what its answer refers to."""

    def __init__(self, store: Store, shelf: Shelf) -> None:
        self._store, self._shelf = store, shelf

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a method of the store that fetches."""
            method = getattr(self._store, name)
            if name in _AS_STORED or not inspect.iscoroutinefunction(method):
                return method

            async def fetching(*arguments: Any, **options: Any) -> Any:
                return await self._shelf.resolved(await method(*arguments, **options))

            setattr(self, name, fetching)
            return fetching
