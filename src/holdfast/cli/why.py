"""What a run is doing or waiting for, and what would move it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.cli.console import decoded
from holdfast.cli.timeline import Span, error_text
from holdfast.cli.wording import ago, length, moment, several
from holdfast.types import Run, Wait, WorkerInfo

SILENT_SECONDS = 8  # a worker not heard of for so long is taken for dead


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to "why": what is so, details, and the commands that would move the run."""

    state: str
    because: str
    details: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


def live_workers(workers: Sequence[WorkerInfo], now: int) -> list[WorkerInfo]:
    """Return the workers that were heard of lately."""
    return [each for each in workers if now - each.heard_at <= SILENT_SECONDS * 1_000_000]


def serves(worker: WorkerInfo, run: Run) -> bool:
    """Say whether a worker would claim a run."""
    return run.queue in worker.queues and f"{run.name}@{run.version}" in worker.handlers


def explain(
    run: Run, spans: Sequence[Span], workers: Sequence[WorkerInfo], now: int
) -> Explanation:
    """Explain a run from its row, its spans, the workers signed on, and engine time."""
    wait = run.wait
    if run.status != "running" or wait is None:
        return _ended(run, spans)
    if wait.stuck is not None:
        return _stuck(run, wait, wait.stuck, now)
    if wait.worker is not None:
        return _leased(run, wait, wait.worker, spans, workers, now)
    if wait.visible_at is not None and wait.visible_at <= now:
        return _queued(run, wait, workers, now)
    return _waiting(run, wait, spans, now)


def _ended(run: Run, spans: Sequence[Span]) -> Explanation:
    at = run.completed_at or run.created_at
    when = f"at {moment(at)}, {length(at - run.created_at)} after its start"
    match run.status:
        case "completed":
            return Explanation(run.state, f"it completed {when}", (f"output: {run.output}",))
        case "failed":
            error = error_text(decoded(run.error))
            return Explanation(run.state, f"it failed {when}: {error}", _failed_steps(spans))
        case "timed_out":
            return Explanation(run.state, f"it was ended at its deadline, {when}")
        case _:
            asked = [span for span in spans if span.kind in ("cancel", "end")]
            reasons = tuple(f"reason: {span.note}" for span in asked if span.note)
            return Explanation(run.state, f"it was {run.status} {when}", reasons)


def _failed_steps(spans: Sequence[Span]) -> tuple[str, ...]:
    return tuple(
        f"step {span.label} failed after {several(span.attempts, 'attempt')}: {span.note}"
        for span in spans
        if span.kind == "step" and span.outcome == "failed"
    )


def _stuck(run: Run, wait: Wait, reason: str, now: int) -> Explanation:
    again = "soon" if wait.visible_at is None else ago(wait.visible_at, now)
    return Explanation(
        run.state,
        f"it cannot go on with the code that the workers have: {reason}",
        (f"it is tried again {again}; a worker with corrected code heals it",),
        (f'holdfast runs terminate {run.run_id} --reason "…"',),
    )


def _leased(
    run: Run,
    wait: Wait,
    worker_id: str,
    spans: Sequence[Span],
    workers: Sequence[WorkerInfo],
    now: int,
) -> Explanation:
    details = _cancel_notes(spans)
    backoff = _backoff(spans, now)
    if backoff is not None:
        details = (backoff, *details)
    if wait.attempts > 1:
        details += (f"it was claimed {wait.attempts} times since it last made progress",)
    holder = next((each for each in workers if each.worker_id == worker_id), None)
    if holder is None or now - holder.heard_at > SILENT_SECONDS * 1_000_000:
        heard = "is not signed on" if holder is None else f"was heard {ago(holder.heard_at, now)}"
        return Explanation(
            run.state,
            f"worker {worker_id} holds it and {heard}",
            ("another worker takes it over once that one counts as dead", *details),
        )
    last = max((span.ended_at or span.began_at for span in spans), default=run.created_at)
    return Explanation(
        run.state,
        f"it runs on worker {worker_id}; the last entry in its log was made {ago(last, now)}",
        details,
    )


def _backoff(spans: Sequence[Span], now: int) -> str | None:
    """Describe the steps that have failed and are to be tried again."""
    for span in spans:
        if span.kind == "step" and span.outcome == "open" and span.failures:
            last = span.failures[-1]
            at = last.retry_at or now
            when = "is being tried again" if at <= now else f"is tried again {ago(at, now)}"
            return f"step {span.label} {when}; attempt {last.number} failed: {last.error}"
    return None


def _cancel_notes(spans: Sequence[Span]) -> tuple[str, ...]:
    for span in spans:
        if span.kind == "cancel":
            note = f" ({span.note})" if span.note else ""
            return (f"a cancel was asked for at {moment(span.began_at)}{note}: it may clean up",)
    return ()


def _queued(run: Run, wait: Wait, workers: Sequence[WorkerInfo], now: int) -> Explanation:
    handler = f"{run.name}@{run.version}"
    live = live_workers(workers, now)
    serving = [each for each in live if serves(each, run)]
    since = f"for {length(now - (wait.visible_at or now))}"
    if serving:
        count = several(len(serving), "worker")
        return Explanation(
            run.state,
            f"it has been due {since}, and {count} could take it: it waits for room",
            tuple(f"{each.worker_id} takes {each.concurrency} runs at once" for each in serving),
        )
    others = sorted(
        {
            known
            for each in live
            for known in each.handlers
            if known.startswith(f"{run.name}@") and known != handler
        }
    )
    details = [f"workers serve {', '.join(others)}"] if others else _offered(run.queue, live)
    details += [
        f"worker {each.worker_id} has {handler}, for other queues: {', '.join(each.queues)}"
        for each in live
        if handler in each.handlers
    ]
    return Explanation(
        run.state,
        f"no worker can run this: none that lives serves {handler} on queue {run.queue!r} "
        f"(it has been due {since})",
        tuple(details),
        (f"holdfast worker MODULE:APP --queue {run.queue}",),
    )


def _offered(queue: str, live: Sequence[WorkerInfo]) -> list[str]:
    """Name what is served on a queue: the name that was meant may be among it."""
    known = sorted({handler for each in live if queue in each.queues for handler in each.handlers})
    return [f"workers on queue {queue!r} serve {', '.join(known)}"] if known else []


def _waiting(run: Run, wait: Wait, spans: Sequence[Span], now: int) -> Explanation:
    at = wait.visible_at
    details = _cancel_notes(spans)
    until = "" if at is None else f"{moment(at, now)} ({ago(at, now)})"
    backoff = _backoff(spans, now)
    if backoff is not None:
        return Explanation(run.state, backoff, details)
    if wait.awaiting:
        names = " or ".join(repr(name) for name in wait.awaiting)
        noun = "signal" if len(wait.awaiting) == 1 else "signals"
        if at is not None:
            details = (f"without it, a timer goes off {until}", *details)
        commands = tuple(
            f"holdfast runs signal {run.run_id} {name} '{{}}'" for name in wait.awaiting
        )
        return Explanation(run.state, f"it waits for {noun} {names}", details, commands)
    if at is None:
        return Explanation(
            run.state,
            "it waits for nothing that would come by itself",
            details,
            (f"holdfast runs cancel {run.run_id}",),
        )
    if run.started_at is None and not spans:
        return Explanation(run.state, f"its start is delayed until {until}", details)
    timers = [span.label for span in spans if span.kind == "timer" and span.outcome == "open"]
    by = f" ({timers[0]})" if len(timers) == 1 else ""
    return Explanation(run.state, f"it sleeps until {until}{by}", details)
