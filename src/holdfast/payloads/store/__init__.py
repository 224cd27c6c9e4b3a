"""A store that keeps payloads encoded, in parts: a file for each kind of call."""

from holdfast.payloads.store.store import PayloadStore, with_payloads

__all__ = ["PayloadStore", "with_payloads"]
