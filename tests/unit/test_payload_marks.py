"""Payloads are encoded unless something says that they stay readable."""

from __future__ import annotations

import typing
from typing import Any, Protocol

import msgspec
import pytest

from holdfast.events import EVENT_SUBSCRIBED, GIVEN, TYPES, VALUE_RECORDED
from holdfast.payloads import READABLE
from holdfast.payloads.store.store import PayloadStore
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.port.readable import readable, readable_methods
from holdfast.types import ErrorInfo

# The shapes of these have fields for payloads that they do not use, or that SQL has to read.
READABLE_TYPES = {
    VALUE_RECORDED: "is true, or names a call",
    EVENT_SUBSCRIBED: "SQL compares events with it",
}


def methods(port: type) -> set[str]:
    return {name for name in dir(port) if not name.startswith("_") and name != "schema"}


def has_own(name: str) -> bool:
    return any(name in vars(part) for part in PayloadStore.__mro__)


def unsaid(port: type) -> set[str]:
    return {name for name in methods(port) if (name in readable_methods(port)) == has_own(name)}


def payload_fields(shape: type[msgspec.Struct]) -> set[str]:
    hints = typing.get_type_hints(shape)
    kinds = {name: {hint, *typing.get_args(hint)} for name, hint in hints.items()}
    return {name for name, some in kinds.items() if some & {msgspec.Raw, ErrorInfo}}


def test_each_method_of_the_port_is_readable_or_has_its_payloads_encoded() -> None:
    assert unsaid(Store) == set()


def test_a_method_that_says_nothing_is_found() -> None:
    class More(Store, Protocol):
        async def keep_secret(self, value: str) -> None: ...

        @readable
        async def count_secrets(self) -> int: ...

    assert unsaid(More) == {"keep_secret"}


def test_a_method_that_says_nothing_is_refused() -> None:
    class More(MemoryStore):
        async def keep_secret(self, value: str) -> None: ...

    store: Any = PayloadStore(More(), READABLE)
    with pytest.raises(AttributeError, match="does not say if keep_secret has payloads"):
        store.keep_secret("x")


@pytest.mark.parametrize("name", sorted(set(TYPES) - set(READABLE_TYPES)))
def test_each_event_type_says_which_of_its_details_are_payloads(name: str) -> None:
    kind = TYPES[name]
    if kind.details is not None and kind.payloads is not GIVEN:
        assert payload_fields(kind.details) <= set(kind.payloads)
