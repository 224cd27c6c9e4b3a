"""The part of the port for what workers write to the logs of their runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.types import Committed, TurnCommit


class CommitStore(Protocol):
    """Commits the turns of many runs in one call."""

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        """Append the turns' events, then suspend or finish the runs. All or nothing per run.

        The caller draws one `token` for a call and all its repetitions: a repeated call
        recognises what the first one wrote, and answers as the first one would have.

        Raises ValueError if a run occurs twice in one call.
        """
        ...
