"""The next attempt of a run that fails, if the policy of its workflow retries it.

The attempt that failed ends as a run that continues as another one does, so all that find a run
through its chain find the next attempt: what waits for its end does not hear of the failure.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from random import Random

import msgspec

from holdfast.details import ContinuedAsNew, FailedAttempt, WorkflowFailed
from holdfast.errors import InvalidInput, PayloadError
from holdfast.events import CONTINUED, FAILED, write_details
from holdfast.retry import Retry
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.updates import Updates
from holdfast.runtime.turn.outcome import Outcome, must_stay_open, outcome, raised
from holdfast.types import Finish
from holdfast.values.ids import continued_run_id

_REPEATED = (PayloadError, InvalidInput)  # the same log and the same code give them again


class Retried(Finish, frozen=True, kw_only=True):
    """The end of an attempt that failed with the error `failure`, JSON text, and is retried."""

    attempt: FailedAttempt
    failure: str


def ending(instance: Instance, unstorable: PayloadError | None) -> Outcome | None:
    """Return how a run ends when its code has ended, None if it stays open.

    `unstorable` is the error if the database has refused its end. If no attempt follows, the
    updates that the code has begun with are answered.
    """
    found = None if must_stay_open(instance) else outcome(instance, unstorable)
    if instance.workflow.retry is not None and found is not None and unstorable is None:
        found = retried(instance, found)
    if Updates in instance.ledgers and not awaits_attempt(instance, found):
        instance.ledger(Updates).answer_accepted()
    return found


def retried(instance: Instance, end: Outcome) -> Outcome | None:
    """Return how a run ends that is to end so: a failure that is retried, with its next attempt.

    A failure stands if there is no policy or no attempt left, if the policy does not retry the
    error, or if the run was asked to stop. Return None if it must stay open: it is paused, and its
    next attempt would not be.
    """
    policy = instance.workflow.retry
    if policy is None or end.kind != FAILED:
        return end
    error = raised(instance)
    if error is None or not _accepts(policy, instance, error):
        return end
    if instance.paused_events is not None:
        return None
    assert end.text is not None, "a failure says what a retry makes again"
    assert end.end.error is not None, "a failure has an error"
    last, run_id = instance.attempt, instance.info.run_id
    number = 1 if last is None else last.number + 1
    pause = _pause(policy, instance, error, number)
    attempt = FailedAttempt(number, policy.attempts, pause, instance.known_as)
    new = ContinuedAsNew(
        run_id=continued_run_id(run_id, instance.loop.now),
        input=msgspec.Raw(b"null"),
        version=instance.info.version,
        signals=[],
        attempt=attempt,
        error=msgspec.Raw(end.end.error.encode()),
        again=msgspec.json.decode(end.text, type=WorkflowFailed),
    )
    output = f'{{"run_id":"{new.run_id}","attempt":{number}}}'
    then = Retried("continued", output, attempt=attempt, failure=end.end.error)
    return Outcome(CONTINUED, write_details(new), then)


def awaits_attempt(instance: Instance, end: Outcome | None) -> bool:
    """Return True if a run that is to end so, or to stay open for None, may have a next attempt.

    It carries out the updates that the code has begun with.
    """
    if instance.workflow.retry is None:
        return False
    return end is None or isinstance(end.end, Retried)


def _accepts(policy: Retry, instance: Instance, error: BaseException) -> bool:
    last = instance.attempt
    tries = 1 if last is None else last.number + 1
    if instance.cancel_requested or instance.cancel_unheard:
        return False
    if isinstance(error, _REPEATED) or not policy.lasts(tries):
        return False
    try:
        verdict = policy.accepts(error)
    except Exception as raised_by_it:
        _report(instance, f"should_retry failed, so it is not retried: {raised_by_it!r}")
        return False
    if isinstance(verdict, Awaitable):
        if inspect.iscoroutine(verdict):
            verdict.close()
        _report(instance, "should_retry of a workflow cannot be async, so it is not retried")
        return False
    return verdict


def _pause(policy: Retry, instance: Instance, error: BaseException, number: int) -> float:
    """Return the seconds until the next attempt. Their chance is that of the run."""
    try:
        asked = policy.asked_seconds(error)
    except Exception as raised_by_it:
        _report(instance, f"delay failed, so the pause is the policy's own: {raised_by_it!r}")
        asked = None
    if asked is not None:
        return asked
    return policy.delay_seconds(number, Random(f"{instance.info.run_id}").random)


def _report(instance: Instance, problem: str) -> None:
    instance.loop.problems.append(f"retry of workflow {instance.info.name}: {problem}")
