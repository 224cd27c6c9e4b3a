"""The part of the port for forks and retries."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import Fork, Forking, Notice, RetryPlan


class ForkStore(Protocol):
    """Starts runs with copies of other runs' logs."""

    async def fork_run(self, fork: Fork) -> tuple[Forking, list[Notice]]:
        """Start a run with a copy of another's log.

        The copy ends with WorkflowForked. The outcome says why there is no new run: `exists` if
        the new id is taken (a repeated call), `missing` if there is no such run, `running` for
        the retry of a run that has not failed, `unknown_key` for a result whose key is not in
        the copied part, `bad_index` for an index beyond the log's end or below 1, `unreadable`
        for a log with an event that no worker can read.
        """
        ...

    @readable
    async def retry_plan(self, run_id: UUID, *, failed_steps: bool = False) -> RetryPlan:
        """Return which ended calls of a run its retry would keep, and which it would make again.

        Empty for a run that cannot be retried, and for that of a flow.
        """
        ...
