"""Explain a run by its state: ended, stuck, paused, on a worker, due, or waiting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from msgspec.structs import replace

from holdfast.codec import shown_words
from holdfast.insight.actions import Action
from holdfast.insight.retries import plan_texts
from holdfast.insight.serving import is_silent, live_workers, serves, thread_shortage
from holdfast.insight.spans import Span, error_chain, error_text, read_json, traceback_text
from holdfast.insight.timeline import read_run_spans, read_steps
from holdfast.insight.why.calls import call_reasons
from holdfast.insight.why.explanation import Explanation, explanation
from holdfast.insight.why.flows import explain_flow, running_steps, runs_that_continue
from holdfast.insight.why.queued import (
    due_since,
    explain_queued,
    room_texts,
    unserved_details,
    unserved_text,
    ways_out,
)
from holdfast.insight.why.start_rules import explain_start
from holdfast.insight.why.surroundings import Surroundings, look_around, sent_signals
from holdfast.insight.why.waiting import (
    cancel_notes,
    describe_backoff,
    explain_waiting,
    last_traceback,
)
from holdfast.insight.wording import ago, length, moment, several
from holdfast.store.port import Store
from holdfast.store.port.claims import SUSPECT_ATTEMPTS
from holdfast.types import (
    SCHEDULE_HEADER,
    TICK_HEADER,
    LastFailureRecord,
    RetryPlan,
    RunRecord,
    Wait,
)

_INVALID_INPUT = "holdfast.errors.InvalidInput: "
_POISONED = "holdfast.PoisonedRun: "
_OF_OTHERS = ("signal", "update", "pause", "change", "lost")  # which come whatever the code does


async def explain_run(store: Store, run: RunRecord) -> Explanation:
    """Return what a run does or waits for, and what would move it."""
    log = (await store.read_events([(run.run_id, 0)])).get(run.run_id, [])
    spans = read_run_spans(run, log, await read_steps(store, run, outputs=False))
    return explain(run, spans, await look_around(store, run, spans, log))


def explain(run: RunRecord, spans: Sequence[Span], around: Surroundings) -> Explanation:
    """Return the explanation of a run from its row, its spans, and what it depends on."""
    spans = [span for span in spans if span.kind not in ("delay", "queue")]  # as the row says
    wait = run.wait
    undelivered = (*_undelivered(spans, around), *_scheduled(run))
    if run.last_failure is not None and run.started_at is not None and run.status == "running":
        last = run.last_failure
        undelivered += (f"it is attempt {last.number + 1}: {_attempt(last)}",)
    if run.status != "running" or wait is None:
        found = _ended(run, spans, around)
        return replace(found, details=(*found.details, *undelivered))
    found = _open(run, wait, spans, around)
    if around.failing_puts:
        found = _waits_to_store(found, around)
    actions, details = list(found.actions), list(found.details)
    for reason in call_reasons(run, spans, around):
        details.append(reason.text)
        if reason.action is not None and reason.action not in actions:
            actions.append(reason.action)
    actions.sort(key=lambda each: each.do == "update")  # last: handlers wait beside all else
    return replace(found, details=(*details, *undelivered), actions=tuple(actions))


def _waits_to_store(found: Explanation, around: Surroundings) -> Explanation:
    """Explain a run whose worker cannot put a large payload of it where these are kept."""
    failing = around.failing_puts[0]
    when = ago(failing.failed_at, around.now)
    return replace(
        found,
        because=f"it waits to store a large payload at {failing.url}; last tried {when}: "
        f"{failing.error}",
        details=(
            "its worker tries again by itself, and repeats nothing that has run: see that the "
            "place can be reached, and that the worker may write there",
            found.because,
            *found.details,
        ),
    )


def _scheduled(run: RunRecord) -> Iterator[str]:
    """Name the schedule and the tick that a run is of, its own or its parent's."""
    headers = run.headers or {}
    if SCHEDULE_HEADER in headers:
        yield f"it is of tick {headers.get(TICK_HEADER)} of schedule {headers[SCHEDULE_HEADER]}"


def _undelivered(spans: Sequence[Span], around: Surroundings) -> Iterator[str]:
    """Name the signals to runs that had ended before, or that do not exist."""
    for span in sent_signals(spans):
        target = around.targets.get(UUID(span.target_run_id))
        what = f"{span.label} to run {span.target_run_id}"
        if target is None:
            missing = "there is no such run, or retention has removed it since"
            yield f"{what}: {f'it {around.lost}' if around.lost else missing}"
        elif target.completed_at is not None and target.completed_at < span.began_at:
            yield f"{what}: it was not delivered, because that run had ended"


def _open(run: RunRecord, wait: Wait, spans: Sequence[Span], around: Surroundings) -> Explanation:
    if wait.stuck is not None:
        return _stuck(run, wait, shown_words(wait.stuck), around)
    if wait.paused:
        return _paused(run, wait, spans, around)
    if around.flow is not None:
        return explain_flow(run, spans, around, around.flow)
    if wait.worker is not None:
        return _leased(run, wait, wait.worker, spans, around)
    begins_later = wait.visible_at is None or wait.visible_at > around.now
    if around.start_wait is not None and begins_later:
        return explain_start(run, wait, around.start_wait)
    if not begins_later:
        return explain_queued(run, wait, around)
    return explain_waiting(run, wait, spans, around)


def _ended(run: RunRecord, spans: Sequence[Span], around: Surroundings) -> Explanation:
    at = run.completed_at or run.created_at
    when = f"at {moment(at)}, {length(at - run.created_at)} after its start"
    match run.status:
        case "completed":
            return explanation(run, f"it completed {when}", (f"output: {run.output}",))
        case "failed":
            return _failed(run, spans, around, when)
        case "timed_out":
            because, reasons = f"it was ended at its deadline, {when}", tuple[str, ...]()
        case "continued":
            return _continued(run, when)
        case _:
            asked = [span for span in spans if span.kind in ("cancel", "end")]
            reasons = tuple(f"reason: {span.note}" for span in asked if span.note)
            because = f"it was {run.status} {when}"
    again, action = _again(run, around)
    return explanation(run, because, (*reasons, *_plan(around), *again), (action,))


def _again(run: RunRecord, around: Surroundings) -> tuple[tuple[str, ...], Action]:
    """Name the retry of an ended run, if it has one; return also the action that continues it."""
    if (retry := around.retried_as) is None:
        return (), Action("retry", run.run_id)
    again = "retried" if run.key is None else "retried, or its key started again,"
    text = f"it was {again} as run {retry.run_id}, which is {retry.state}"
    return (text,), Action("why", retry.run_id)


def _plan(around: Surroundings) -> Iterator[str]:
    """Say what a retry does about what the code did because of the cancel or a failure."""
    if around.plans is not None and ((plan := around.plans[0]).after or plan.cancel):
        yield from plan_texts(plan)


def _failed(run: RunRecord, spans: Sequence[Span], around: Surroundings, when: str) -> Explanation:
    recorded = read_json(run.error)
    error = error_text(recorded)
    last = run.last_failure
    details = (
        *([around.element] if around.element else []),
        *([f"it was attempt {last.number + 1}: {_attempt(last)}"] if last else []),
        *_failed_calls(spans, set(error_chain(recorded)), error),
    )
    again, action = _again(run, around)
    actions: tuple[Action, ...] = (action,)
    if again:
        details += again
    elif _has_refused_its_input(spans, around, error):  # the same input would fail again
        actions = (Action("fork", run.run_id, index=1, new_input=True),)
    elif (place := around.misfit_at) is not None:
        details += (
            "a retry takes the signal again, so it helps only after the code was corrected"
            + ("; a fork from before the signal waits for another" if place else ""),
        )
        actions = (*([Action("fork", run.run_id, index=place)] if place else []), *actions)
    elif error.startswith(_POISONED):
        details += (
            "its workers died, its code did not fail: a retry continues where it stopped",
            *_plan(around),
        )
    elif around.plans is not None:
        told, actions = _retries(run, *around.plans, tuple(_plan(around)))
        details += told
    because = f"it failed {when}: {error}"
    return explanation(run, because, details, actions, traceback_text(recorded))


def _has_refused_its_input(spans: Sequence[Span], around: Surroundings, error: str) -> bool:
    """Return True if a run failed on its input, before its code began."""
    called = any(span.kind not in _OF_OTHERS for span in spans)
    return not called and around.misfit_at is None and error.startswith(_INVALID_INPUT)


def _retries(
    run: RunRecord, plan: RetryPlan, of_failed: RetryPlan, told: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[Action, ...]]:
    """Say what a retry would repeat, as `told`, and return the retries that help."""
    plain = Action("retry", run.run_id)
    if not plan.failed and of_failed.failed:
        return (
            "an error of its own code ended it: a plain retry repeats no call, and helps only "
            "after the code was corrected",
            "its code had handled the failures of calls: a retry of the failed steps repeats these",
            *plan_texts(of_failed),
        ), (Action("retry", run.run_id, failed_steps=True), plain)
    if plan.after and plan.kept:
        told += (
            "if that took something back that a retry keeps, do not retry it: fork it from the "
            "first call that was taken back (--step KEY)",
        )
    return told, (plain,)


def _failed_calls(spans: Sequence[Span], causes: set[str], told: str) -> tuple[str, ...]:
    """Name the calls whose failures ended the run, not those that its code has handled.

    An error that `told` ends with is not said again.
    """
    return tuple(
        f"{span.kind} {span.label} failed"
        + ("" if span.kind == "child" else f" after {several(span.attempts, 'attempt')}")
        + ("" if told.endswith(span.note) else f": {span.note}")
        for span in spans
        if span.kind in ("step", "activity", "child")
        and span.outcome == "failed"
        and span.note in causes
    )


def _attempt(last: LastFailureRecord) -> str:
    """Name an attempt of a run that failed, and its error."""
    return f"attempt {last.number} failed with {error_text(read_json(last.error))}"


def _continued(run: RunRecord, when: str) -> Explanation:
    output, last = read_json(run.output), run.last_failure
    successor = output.get("run_id") if isinstance(output, dict) else None
    because, traceback = f"it continued as run {successor} {when}", ""
    if last is not None:
        error = read_json(last.error)
        because = f"it failed {when}, and is retried as run {successor}: {error_text(error)}"
        traceback = traceback_text(error)
    action = Action("why", UUID(successor)) if isinstance(successor, str) else None
    return explanation(run, because, (), (action,) if action else (), traceback)


def _stuck(run: RunRecord, wait: Wait, reason: str, around: Surroundings) -> Explanation:
    at, now = wait.visible_at, around.now
    again = "is tried again soon" if at is None else f"is tried again {ago(at, now)}"
    if at is not None and at <= now:
        again = f"has been due to be tried again for {length(now - at)}"
    locked = reason.startswith("a value is ")  # as PayloadLocked says
    healer = "a worker that can read the value" if locked else "a worker with corrected code"
    details = [f"it {again}; {healer} continues it"]
    actions = [Action("terminate", run.run_id)]
    live = live_workers(around.workers, now)
    if not any(serves(each, run) for each in live):
        details.append(unserved_text(run))
        actions[:0] = ways_out(run, live)
    else:
        if at is not None and at > now:
            actions.insert(0, Action("resume", run.run_id))
        if run.build is not None:
            details.append(
                f"it stays with build {run.build}: only workers of that build continue it"
            )
            actions.insert(0, Action("move_build", run.run_id))
    origin = around.origin
    if origin is not None:
        other = origin.input != run.input
        details.append(
            f"it is a fork of run {origin.run_id}: if "
            f"{'its changed input' if other else 'what was changed in it'} makes the code take "
            "another path than the log that it copied, fork from an earlier index"
        )
        actions.insert(0, Action("fork", origin.run_id, index=1, new_input=other))
    reason, _, traceback = reason.partition("\n")
    missing = "" if locked else " with the code that the workers have"
    because = f"it cannot continue{missing}: {reason}"
    return explanation(run, because, tuple(details), tuple(actions), traceback)


def _paused(run: RunRecord, wait: Wait, spans: Sequence[Span], around: Surroundings) -> Explanation:
    pause = next((span for span in reversed(spans) if span.kind == "pause"), None)
    because = "it is paused"
    if pause is not None:
        reason = f" ({pause.note})" if pause.note else ""
        because = f"it was paused {ago(pause.began_at, around.now)}{reason}"
    draining: tuple[str, ...] = (
        (f"worker {wait.worker} lets its running steps end",) if wait.worker else ()
    )
    if around.flow is not None:
        steps = running_steps(run, spans, around, around.flow)
        draining = (*steps, *runs_that_continue(around.flow))
    elif around.children:
        draining += (
            f"{several(len(around.children), 'child run')} of it not held back: a pause reaches no "
            "other runs; pause them too, if they are to wait",
        )
    action = Action("resume", run.run_id)
    return explanation(run, because, (*draining, *cancel_notes(spans)), (action,))


def _leased(
    run: RunRecord, wait: Wait, worker_id: str, spans: Sequence[Span], around: Surroundings
) -> Explanation:
    now, details = around.now, cancel_notes(spans)
    backoff = describe_backoff(spans, now)
    if backoff is not None:
        details = (backoff, *details)
    if wait.attempts > 1:
        details += (f"it was claimed {wait.attempts} times since it last made progress",)
    worker = next((each for each in around.workers if each.worker_id == worker_id), None)
    if worker is None or is_silent(worker, now):
        heard = "is not signed on" if worker is None else f"was heard {ago(worker.heard_at, now)}"
        return _left(run, wait, f"worker {worker_id} holds it and {heard}", details, around)
    if shortage := thread_shortage(worker):
        details = (shortage, *details)
    last = max((span.ended_at or span.began_at for span in spans), default=run.created_at)
    return explanation(
        run,
        f"it runs on worker {worker_id}; the last entry in its log was made {ago(last, now)}",
        details,
        traceback=last_traceback(spans),
    )


def _left(
    run: RunRecord, wait: Wait, because: str, details: tuple[str, ...], around: Surroundings
) -> Explanation:
    """Explain a run whose worker is silent: another takes it over, if one can.

    A worker has at most one suspect at a time, a run that may be what kills its workers; the next
    is taken over as soon as that one has recorded something.
    """
    live = live_workers(around.workers, around.now)
    if serving := [each for each in live if serves(each, run)]:
        rooms: tuple[str, ...] = ()
        takes_over = "another worker takes it over once that one counts as dead"
        if wait.visible_at is not None and wait.visible_at < around.now:
            takes_over, rooms = room_texts(serving, due_since(wait, around))
        if wait.attempts >= SUSPECT_ATTEMPTS:
            takes_over += (
                "; it has lost several, so it waits until a worker has no other such run that has "
                "recorded nothing since it was taken over"
            )
        return explanation(run, because, (takes_over, *rooms, *details))
    return explanation(
        run,
        f"{because}; {unserved_text(run)}",
        (*unserved_details(run, run.queue, live), *details),
        ways_out(run, live),
    )
