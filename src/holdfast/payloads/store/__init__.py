"""A store that keeps payloads encoded, in parts: a file for each kind of call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from holdfast.payloads.encoding import Payloads
from holdfast.store.port import Store

if TYPE_CHECKING:
    from holdfast.payloads.store.store import PayloadStore

Item = TypeVar("Item")


def with_payloads(store: Store, payloads: Payloads | None) -> Store:
    """Return a store that keeps payloads encoded; without codecs the store itself."""
    if payloads is None:
        return store
    # Here, because it has many parts, and few programs encode payloads.
    from holdfast.payloads.store.store import PayloadStore

    return cast("Store", PayloadStore(store, payloads))


def payload_store(store: Store) -> PayloadStore | None:
    """Return a store as one that keeps payloads encoded; None if it does not."""
    module = sys.modules.get("holdfast.payloads.store.store")
    if module is None:  # `with_payloads` has made none
        return None
    return cast("PayloadStore", store) if isinstance(store, module.PayloadStore) else None


def outside_of(store: Store, read: Callable[[Item], str]) -> Callable[[Item], bool] | None:
    """Return what says that an item's payload may be stored as an object; None if none are."""
    own = payload_store(store)
    if own is None or own.payloads.large is None:
        return None
    may_be_outside = own.payloads.may_be_outside
    return lambda item: may_be_outside(read(item))
