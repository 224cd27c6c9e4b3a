"""What a flow's run waits for: its steps that are on workers, due, tried again, or delayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.codec import shown_words
from holdfast.insight.actions import Action, resume_action
from holdfast.insight.flow_progress import StepProgress, raised
from holdfast.insight.limits import limits_text
from holdfast.insight.serving import is_silent, live_workers, serves_queue
from holdfast.insight.spans import Span, error_text
from holdfast.insight.why.explanation import Explanation, Reason, explanation, pause_text
from holdfast.insight.why.queued import unserved_details
from holdfast.insight.why.surroundings import FlowSurroundings, Surroundings
from holdfast.insight.why.waiting import last_traceback
from holdfast.insight.wording import ago, length, moment, several
from holdfast.types import LimitWait, OpenStepTasks, RunRecord, StepShape
from holdfast.values.ids import step_run_id

_SHOWN = 10


def explain_flow(
    run: RunRecord, spans: Sequence[Span], around: Surroundings, flow: FlowSurroundings
) -> Explanation:
    """Explain the run of a flow that is not paused, by its open steps."""
    if run.due_at is not None and run.due_at > around.now:
        until = f"{moment(run.due_at, around.now)} ({ago(run.due_at, around.now)})"
        return explanation(run, f"its start is delayed until {until}", _ended_steps(flow))
    reader = _Reader(run, spans, around, flow)
    reasons = {each.step: reader.reason(each.step) for each in flow.tasks}
    reasons |= _runs(run, flow) | _held_back(run, around, flow)
    names = list(reasons)
    if not names:  # they ended after the run was read
        return explanation(run, "its last step has just ended", _ended_steps(flow))
    first = reasons[names[0]]
    because, details = first.text, [*reader.unserved]
    if len(names) > 1:
        because = f"it waits for {several(len(names), 'step')}: {_listed(names)}"
        details = [*_shown([each.text for each in reasons.values()]), *details]
    actions = dict.fromkeys(each.action for each in reasons.values() if each.action is not None)
    pause, others = around.pause_of("workflow", run.full_name), [*runs_that_continue(flow)]
    if pause is not None and others:
        details += [f"its {pause_text(pause, around.now)}", *others]
        actions[resume_action(pause)] = None
    return explanation(
        run,
        because,
        (*details, *_ended_steps(flow)),
        tuple(actions),
        traceback=last_traceback(spans),
    )


def _steps_that_are_runs(flow: FlowSurroundings) -> Iterator[tuple[StepShape, StepProgress]]:
    """Give the steps under way that are runs."""
    over = {each.step for each in flow.steps if each.has_ended or each.state == "stopped"}
    begun = {
        each.step: each
        for each in flow.steps
        if (each.started_at or each.state == "delayed") and each.step not in over
    }
    for shape in () if flow.shape is None else flow.shape.steps:
        if shape.runs is not None and (step := begun.get(shape.slug)) is not None:
            yield shape, step


def runs_that_continue(flow: FlowSurroundings) -> Iterator[str]:
    """Give a sentence about the steps that are runs, of a flow that is paused or whose run is."""
    names = [shape.slug for shape, _ in _steps_that_are_runs(flow)]
    if names:
        what = "step" if len(names) == 1 else "steps"
        yield (
            f"{what} {_listed(names)}: other runs, which continue, as a pause reaches no other "
            "runs; pause these, or their workflows, to hold them back too"
        )


def _runs(run: RunRecord, flow: FlowSurroundings) -> dict[str, Reason]:
    """Return the steps under way that are runs, and what each waits for."""
    found: dict[str, Reason] = {}
    for shape, step in _steps_that_are_runs(flow):
        if step.kind == "map":
            left = (step.tasks or 0) - step.done
            text = f"map {shape.slug} waits for {several(left, 'run')} of {shape.runs}"
            if shape.concurrency is not None and left > shape.concurrency:
                text += f", of which {shape.concurrency:,} may be under way at once"
            found[shape.slug] = Reason(text)
            continue
        child_id = step_run_id(run.run_id, shape.slug, step.attempts, run.created_at)
        text = f"step {shape.slug} waits for run {child_id} of {shape.runs}"
        found[shape.slug] = Reason(text, Action("why", child_id))
    return found


def _held_back(run: RunRecord, around: Surroundings, flow: FlowSurroundings) -> dict[str, Reason]:
    """Return the steps that are runs and could begin, if their flow were not paused."""
    pause = around.pause_of("workflow", run.full_name)
    if pause is None or flow.shape is None:
        return {}
    runs = {shape.slug for shape in flow.shape.steps if shape.runs is not None}
    over = {each.step for each in flow.steps if each.has_ended}
    text = f"could begin, but its {pause_text(pause, around.now)}"
    return {
        each.step: Reason(f"step {each.step} {text}", resume_action(pause))
        for each in flow.steps
        if each.step in runs and each.state == "created" and over.issuperset(each.deps)
    }


def running_steps(
    run: RunRecord, spans: Sequence[Span], around: Surroundings, flow: FlowSurroundings
) -> tuple[str, ...]:
    """Return a sentence for each step that a worker has, of a run that is paused."""
    reader = _Reader(run, spans, around, flow)
    names = dict.fromkeys(each.step for each in flow.tasks if each.phase == "running")
    return tuple(_shown([reader.reason(name).text for name in names]))


class _Reader:
    """Explains open steps, one after the other.

    `unserved` gathers what workers serve instead, of handlers that none serves.
    """

    def __init__(
        self, run: RunRecord, spans: Sequence[Span], around: Surroundings, flow: FlowSurroundings
    ) -> None:
        self._run, self._around, self._flow = run, around, flow
        self._live = live_workers(around.workers, around.now)
        self._failed_at = {
            span.label: span.failures[-1].at
            for span in spans
            if span.kind == "step" and span.failures
        }
        self.unserved: dict[str, None] = {}

    def reason(self, name: str) -> Reason:
        """Return why a step has not ended, and the action that would move it."""
        tasks = [each for each in self._flow.tasks if each.step == name]
        step = next(each for each in self._flow.steps if each.step == name)
        parts = [self._part(step, each) for each in tasks]
        action = next((part.action for part in parts if part.action is not None), None)
        text = "; ".join(part.text for part in parts)
        if step.kind == "map":
            done = f"{step.done:,} of {several(step.tasks or 0, 'element')} done"
            return Reason(f"map {name}: {done}; {text}", action)
        last = ", which always runs at the end," if step.trigger_rule == "always" else ""
        return Reason(f"step {name}{last} {text}", action)

    def _part(self, step: StepProgress, tasks: OpenStepTasks) -> Reason:
        match tasks.phase:
            case "running":
                return Reason(self._running(step, tasks))
            case "due":
                return self._due(step, tasks)
            case "retrying" | "delayed" if tasks.stuck is not None:
                return Reason(self._held(step, tasks, shown_words(tasks.stuck)))
            case "retrying":
                return Reason(self._retrying(step, tasks))
            case "delayed":
                return Reason(self._delayed(step, tasks))
            case "waiting":
                return Reason(self._waiting(step, tasks))

    def _running(self, step: StepProgress, tasks: OpenStepTasks) -> str:
        now = self._around.now
        text = f"{_count(step, tasks, 'runs', 'run')} on {self._worker(tasks)}"
        if step.kind == "single":
            began = "" if tasks.started_at is None else ago(tasks.started_at, now)
            first = "begun" if tasks.attempts == 1 else "the first begun"
            text += f": attempt {tasks.attempts}, {first} {began}"
        return text + (f"; the last one failed: {_line(tasks)}" if tasks.error else "")

    def _worker(self, tasks: OpenStepTasks) -> str:
        now = self._around.now
        worker = next((w for w in self._around.workers if w.worker_id == tasks.worker), None)
        if worker is None:
            until = f"its lease ends {ago(tasks.visible_at, now)}"
            return f"worker {tasks.worker}, which is not signed on ({until})"
        if is_silent(worker, now):
            return f"worker {tasks.worker}, which was heard {ago(worker.heard_at, now)}"
        return f"worker {tasks.worker}"

    def _due(self, step: StepProgress, tasks: OpenStepTasks) -> Reason:
        run, around, queue = self._run, self._around, tasks.queue
        due = f"for {length(around.now - tasks.visible_at)}"
        text = f"{_count(step, tasks, 'has', 'have')} been due {due}"
        for pause in (around.pause_of("queue", queue), around.pause_of("workflow", run.full_name)):
            if pause is not None:
                because = f"{text}, but {pause_text(pause, around.now)}"
                return Reason(because, resume_action(pause))
        serving = [each for each in self._live if serves_queue(each, run.handler, queue)]
        if not serving:
            self.unserved |= dict.fromkeys(unserved_details(run, queue, self._live))
            because = f"{text}: no live worker serves {run.handler} on queue {queue!r}"
            if not run.app:
                because += "; one that speaks SQL only is not signed on, and may take it"
            return Reason(because, Action("start_worker", name=queue))
        if waits := [each for each in around.limits if _step_of(each) == step.step]:
            return Reason(f"{text}: {limits_text(waits, around.now)}")
        text += f", and {several(len(serving), 'worker')} could take it"
        left = "" if tasks.stuck is None else f"; one has left it: {shown_words(tasks.stuck)}"
        return Reason(text + left)

    def _held(self, step: StepProgress, tasks: OpenStepTasks, reason: str) -> str:
        again = self._at(tasks.visible_at)
        verb = _count(step, tasks, "is", "are")
        return f"{verb} tried again at {again}, because no attempt could begin: {reason}"

    def _retrying(self, step: StepProgress, tasks: OpenStepTasks) -> str:
        now, at = self._around.now, self._failed_at.get(step.step)
        when = "" if at is None else f" {ago(at, now)}"
        which = "" if tasks.index is None else f" at element {tasks.index:,}"
        first = ", the first" if tasks.tasks > 1 else ""
        text = f"{_count(step, tasks, 'is', 'are')} tried again{first} {ago(tasks.visible_at, now)}"
        return f"{text}; attempt {tasks.attempts} failed{which}{when}: {_line(tasks)}"

    def _waiting(self, step: StepProgress, tasks: OpenStepTasks) -> str:
        steps = () if self._flow.shape is None else self._flow.shape.steps
        limit = next((each.concurrency for each in steps if each.slug == step.step), None)
        most = "" if limit is None else f", of which {limit:,} may be under way at once"
        return f"{_count(step, tasks, 'waits', 'wait')} for other elements to end{most}"

    def _delayed(self, step: StepProgress, tasks: OpenStepTasks) -> str:
        until, shape = self._at(tasks.visible_at), self._flow.shape
        known = () if shape is None else shape.steps
        if any(each.slug == step.step and each.start_delay for each in known):
            return f"{_count(step, tasks, 'begins', 'begin')} at {until}: it has a start_delay"
        return (
            f"{_count(step, tasks, 'was', 'were')} read by a worker that speaks SQL, which has not "
            f"started it: due again at {until}"
        )

    def _at(self, at: int) -> str:
        return f"{moment(at, self._around.now)} ({ago(at, self._around.now)})"


def _step_of(wait: LimitWait) -> str:
    return wait.task_key.partition(":")[0]


def _count(step: StepProgress, tasks: OpenStepTasks, one: str, many: str) -> str:
    """Return a verb, for elements of a map with how many there are."""
    if step.kind == "single":
        return one
    return f"{tasks.tasks:,} {one if tasks.tasks == 1 else many}"


def _line(tasks: OpenStepTasks) -> str:
    return error_text(raised(tasks.error))


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest:,} more" if rest > 0 else "")


def _shown(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield f"… and {len(lines) - _SHOWN:,} more"


def _ended_steps(flow: FlowSurroundings) -> tuple[str, ...]:
    """Return how many steps have ended, and how many of them were skipped."""
    ended = sum(step.has_ended for step in flow.steps)
    skipped = sum(step.state == "skipped" for step in flow.steps)
    of_them = f", {skipped:,} of them skipped" if skipped else ""
    return (f"{ended:,} of {several(len(flow.steps), 'step')} ended{of_them}",)
