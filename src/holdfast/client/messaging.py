"""Say things to runs: signals, updates, decisions, the results of activities."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from typing import TypeVar, overload
from uuid import uuid4

from holdfast.client.activities import end_from_outside, explained
from holdfast.client.approvals import decide
from holdfast.client.observing import Observer
from holdfast.client.outcomes import decode_plain
from holdfast.client.references import RunRef, Signal
from holdfast.codec import decoder, encode
from holdfast.durations import Duration, seconds
from holdfast.errors import RunEnded, RunNotFound
from holdfast.texts import check_id, check_text
from holdfast.types import Decision, Delivery

T = TypeVar("T")


class Messenger(Observer):
    """The part of a client that talks to runs."""

    async def signal(
        self, run: RunRef, name: str, payload: object = None, signal_id: str | None = None
    ) -> bool:
        """Send a signal; the run's code sees it when it waits for that name, now or later.

        With a `signal_id` it is delivered once, however often it is sent; False says that it
        was sent before. For a run that continued as new it goes to the newest. Raises
        RunNotFound, RunEnded, and PayloadError.

        ```python
        await client.signal(("checkout", "order-7"), "packed", {"boxes": 2})
        ```
        """
        meant = await self._live.names.run(run)
        signal = Signal(run, name, payload, signal_id).encode(meant)
        outcome, run_id = await self._live.signal(signal, by_key=isinstance(run, tuple))
        if outcome == "missing":
            raise RunNotFound(run_id)
        if outcome == "ended":
            raise RunEnded(run_id, (await self._get(run_id)).status)
        return outcome == "delivered"

    async def signal_many(self, signals: Iterable[Signal]) -> builtins.list[Delivery]:
        """Send signals together and say what became of each; none of them raises.

        ```python
        outcomes = await client.signal_many(Signal(run, "stop") for run in run_ids)
        ```
        """
        given = list(signals)
        run_ids = await self._live.names.runs(signal.run for signal in given)
        encoded = [signal.encode(run_id) for signal, run_id in zip(given, run_ids, strict=True)]
        return await self._live.signal_many(encoded)

    @overload
    async def update(
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
    async def update(
        self,
        run: RunRef,
        name: str,
        payload: object = None,
        *,
        update_id: str | None = None,
        timeout: Duration | None = None,
        type: None = None,
    ) -> object: ...
    async def update(
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
            total = await client.update(run_id, "add-item", {"sku": "A7"}, timeout="5s")
        except RunEnded:
            print("too late")
        ```
        """
        limit = None if timeout is None else seconds(timeout)
        update_id = check_id("update id", str(uuid4()) if update_id is None else update_id)
        run_id = await self._live.names.run(run)
        signal = Signal(run, name, payload, update_id).encode(run_id)
        answer = await self._live.update(signal, limit, by_key=isinstance(run, tuple))
        return decode_plain(answer) if type is None else decoder(type)(answer)

    async def decide(
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
        for approval in await client.approvals():
            await client.decide(approval.run_id, approval.key, True, by="ann")
        ```
        """
        decision = Decision(
            run_id=await self._live.newest_of(run),
            key=check_text("key", key),
            decision_id=check_id(
                "decision id", str(uuid4()) if decision_id is None else decision_id
            ),
            approved=approved,
            by=None if by is None else check_text("name", by),
            feedback=None if feedback is None else check_text("feedback", feedback),
        )
        return await decide(self._live, decision, values)

    async def complete_activity(self, token: str, result: object = None) -> None:
        """Complete an activity from outside, with the token that its attempt gave away.

        Raises TokenUnknown where the attempt has ended or another has followed it, and
        PayloadError.

        ```python
        try:
            await client.complete_activity(token, {"scanned": True})
        except TokenUnknown:
            print("nobody waits for it any more")
        ```
        """
        await end_from_outside(self._live, token, result=encode(result))

    async def fail_activity(
        self, token: str, error: str | Exception, *, retryable: bool = True
    ) -> bool:
        """Fail an attempt of an activity from outside; True where it is tried again.

        It is tried again as its retry policy says, unless `retryable` is False. Raises
        TokenUnknown where the attempt has ended or another has followed it.

        ```python
        try:
            await client.fail_activity(token, "the scanner is broken", retryable=False)
        except TokenUnknown:
            print("nobody waits for it any more")
        ```
        """
        outcome = await end_from_outside(
            self._live, token, error=explained(error), retryable=retryable
        )
        return outcome == "retried"
