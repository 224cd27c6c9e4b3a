"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Mapping

from holdfast.client.approvals import Approvals
from holdfast.client.naming import RunRef
from holdfast.insight.approvals import OpenApproval
from holdfast.sync.base import SyncGroup


class SyncApprovals(SyncGroup[Approvals]):
    """The approvals of all runs."""

    def list(self, run: RunRef | None = None, limit: int = 100) -> builtins.list[OpenApproval]:
        """Return the approvals that wait for a decision, of one run or of all, oldest first.

        Of a run that continued as new they are those of the newest.

        ```python
        for approval in client.approvals.list():
            print(approval.run_id, approval.key, approval.title)
        ```
        """
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
        """Approve or refuse what a run asks for; `list` gives the keys of open approvals.

        The first decision counts: another one raises ApprovalDecided, which names the first.
        Returns False if this very decision, by its `decision_id`, was taken before. `values` are
        those of the approval's form, by name.

        Raises InvalidInput for values that do not fit the form, ApprovalNotFound, RunNotFound, and
        ApprovalClosed if the run no longer waits for it.

        ```python
        for approval in client.approvals.list():
            client.approvals.decide(approval.run_id, approval.key, True, by="ann")
        ```
        """
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
