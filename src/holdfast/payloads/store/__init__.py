"""A store that keeps payloads encoded, in parts: a file for each kind of call."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from holdfast.payloads.encoding import Payloads
from holdfast.store.port import Store

if TYPE_CHECKING:
    from holdfast.payloads.store.store import PayloadStore


def with_payloads(store: Store, payloads: Payloads | None) -> Store:
    """Return a store that keeps payloads encoded; without codecs the store itself."""
    if payloads is None:
        return store
    # Here, because it has many parts, and few programs encode payloads.
    from holdfast.payloads.store.store import PayloadStore

    return cast("Store", PayloadStore(store, payloads))


def payload_store(store: Store) -> PayloadStore | None:
    """Return a store as one that keeps payloads encoded; None if it does not."""
    from holdfast.payloads.store.store import PayloadStore

    found: object = store
    return found if isinstance(found, PayloadStore) else None
