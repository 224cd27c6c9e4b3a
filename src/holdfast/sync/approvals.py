"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Mapping

from holdfast.client.approvals import Approvals
from holdfast.client.naming import RunRef
from holdfast.insight.approvals import OpenApproval
from holdfast.sync.base import SyncGroup


class SyncApprovals(SyncGroup[Approvals], of=Approvals):
    """The approvals of all runs."""

    def list(self, run: RunRef | None = None, limit: int = 100) -> builtins.list[OpenApproval]:
        """Return the approvals that wait for a decision, of one run or of all, oldest first."""
        return self._call(self._target.list, run, limit)

    def decide(
        self,
        run: RunRef,
        key: str,
        approved: bool,
        *,
        by: str | None = None,
        feedback: str | None = None,
        values: Mapping[str, object] | None = None,
        decision_id: str | None = None,
    ) -> bool:
        """Approve or refuse what a run asks for; `list` gives the keys of open approvals."""
        return self._call(
            self._target.decide,
            run,
            key,
            approved,
            by=by,
            feedback=feedback,
            values=values,
            decision_id=decision_id,
        )
