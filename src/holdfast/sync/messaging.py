"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from typing import TypeVar, overload

from holdfast.client.references import RunRef, Signal
from holdfast.durations import Duration
from holdfast.sync.observing import SyncObserver
from holdfast.types import Delivery

T = TypeVar("T")


class SyncMessenger(SyncObserver):
    """The part of a client that talks to runs."""

    def signal(
        self, run: RunRef, name: str, payload: object = None, signal_id: str | None = None
    ) -> bool:
        """Send a signal; the run's code sees it when it waits for that name, now or later.

        With a `signal_id` it is delivered once, however often it is sent; False says that it
        was sent before. For a run that continued as new it goes to the newest. Raises
        RunNotFound, RunEnded, and PayloadError.

        ```python
        client.signal(("checkout", "order-7"), "packed", {"boxes": 2})
        ```
        """
        return self._call(self._target.signal, run, name, payload, signal_id)

    def signal_many(self, signals: Iterable[Signal]) -> builtins.list[Delivery]:
        """Send signals together and say what became of each; none of them raises.

        ```python
        outcomes = client.signal_many(Signal(run, "stop") for run in run_ids)
        ```
        """
        return self._call(self._target.signal_many, signals)

    @overload
    def update(
        self,
        run: RunRef,
        name: str,
        payload: object = None,
        *,
        update_id: str | None = None,
        timeout: Duration | None = None,
        type: builtins.type[T],
    ) -> T: ...
    @overload
    def update(
        self,
        run: RunRef,
        name: str,
        payload: object = None,
        *,
        update_id: str | None = None,
        timeout: Duration | None = None,
        type: None = None,
    ) -> object: ...
    def update(
        self,
        run: RunRef,
        name: str,
        payload: object = None,
        *,
        update_id: str | None = None,
        timeout: Duration | None = None,
        type: builtins.type[object] | None = None,
    ) -> object:
        """Ask a run to change something, and return what its handler answers.

        The run may refuse it, and then nothing of it happens. The answer comes back as a `type`,
        else as plain JSON values. With an `update_id` it is carried out once, however often it
        is asked for, and each asker gets the answer; after a ResultTimeout the same id waits
        for it again. For a run that continued as new it goes to the newest.

        Raises UpdateRejected, UpdateFailed, ResultTimeout when `timeout` is up first, RunEnded,
        RunNotFound and PayloadError.

        ```python
        try:
            total = client.update(run_id, "add-item", {"sku": "A7"}, timeout="5s")
        except RunEnded:
            print("too late")
        ```
        """
        return self._call(
            self._target.update, run, name, payload, update_id=update_id, timeout=timeout, type=type
        )

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
        """Decide an open approval of a run; `approvals` lists them with their keys.

        The first decision wins: another one raises ApprovalDecided, which says who was first.
        False where this very decision, by its `decision_id`, was taken before. The `values` are
        those of the approval's form, by name.

        Raises InvalidInput for values that do not fit the form, ApprovalNotFound,
        ApprovalClosed where nobody waits for it any more, and RunNotFound.

        ```python
        for approval in client.approvals():
            client.decide(approval.run_id, approval.key, True, by="ann")
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

    def complete_activity(self, token: str, result: object = None) -> None:
        """Complete an activity from outside, with the token that its attempt gave away.

        Raises TokenUnknown where the attempt has ended or another has followed it, and
        PayloadError.

        ```python
        try:
            client.complete_activity(token, {"scanned": True})
        except TokenUnknown:
            print("nobody waits for it any more")
        ```
        """
        return self._call(self._target.complete_activity, token, result)

    def fail_activity(self, token: str, error: str | Exception, *, retryable: bool = True) -> bool:
        """Fail an attempt of an activity from outside; True where it is tried again.

        It is tried again as its retry policy says, unless `retryable` is False. Raises
        TokenUnknown where the attempt has ended or another has followed it.

        ```python
        try:
            client.fail_activity(token, "the scanner is broken", retryable=False)
        except TokenUnknown:
            print("nobody waits for it any more")
        ```
        """
        return self._call(self._target.fail_activity, token, error, retryable=retryable)
