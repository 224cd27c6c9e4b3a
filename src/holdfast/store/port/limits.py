"""The part of the port for limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import LimitInfo, LimitKind, LimitRule, LimitScope, LimitWait


class LimitStore(Protocol):
    """Sets limits, and tells what waits for them. Claims apply them."""

    async def set_limit(self, rule: LimitRule) -> bool:
        """Set a limit for what is claimed from now on. Return False if nothing changed.

        A name without its app is looked up. Raises InvalidInput for a rule that cannot be.
        """
        ...

    @readable
    async def remove_limit(
        self, scope: LimitScope, name: str, kind: LimitKind, key: str = ""
    ) -> bool:
        """Remove a limit. Return False if there is none."""
        ...

    @readable
    async def declare_limits(self, app: str, rules: Sequence[LimitRule]) -> int:
        """Write the limits that the code of an app declares; return how many were changed.

        A limit that people have changed stays so until the code declares something else. What the
        app declared before, and does not now, is removed.
        """
        ...

    @readable
    async def list_limits(self) -> list[LimitInfo]:
        """Return the limits by scope, name, kind and key."""
        ...

    @readable
    async def explain_limits(self, run_id: UUID) -> list[LimitWait]:
        """Return the limits that tasks of a run wait for, by the key of the task.

        Of a step of a flow, only those of the task that is due longest.
        """
        ...

    @readable
    async def sweep_limits(self, *, limit: int = 1000) -> int:
        """Delete what counts no longer for limits; return how many rows."""
        ...


def concerns_messages(rule: LimitRule, queue: str) -> bool:
    """Return True if a limit concerns the messages of the message queue of this name."""
    return (rule.scope, rule.name) == ("queue", queue) and rule.kind in ("concurrency", "rate")
