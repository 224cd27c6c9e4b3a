"""Why a run has not begun: a singleton, a debounce or a throttle of its workflow."""

from __future__ import annotations

from holdfast.insight.actions import Action
from holdfast.insight.why.explanation import Explanation, explanation
from holdfast.insight.wording import moment
from holdfast.types import DEBOUNCE, SINGLETON, THROTTLE, RunRecord, StartWait, Wait

_RULES = (SINGLETON, DEBOUNCE, THROTTLE)


def waits_for_rule(run: RunRecord) -> bool:
    """Return True if a run has not begun because of a rule of its workflow."""
    return run.wait is not None and any(each in _RULES for each in run.wait.awaiting)


def explain_start(run: RunRecord, wait: Wait, rule: StartWait) -> Explanation:
    """Explain a run that has not begun because of a rule."""
    key = f"key {rule.key!r}" if rule.key else "its key"
    if rule.rule == "singleton":
        others = "" if rule.place in (None, 1) else f", and {(rule.place or 1) - 1} wait before it"
        return explanation(
            run,
            f"it is a singleton, and run {rule.active_run_id} with {key} has not ended{others}",
            ("it begins when the runs before it have ended",),
            () if rule.active_run_id is None else (Action("why", rule.active_run_id),),
        )
    begins = "later" if wait.visible_at is None else f"at {moment(wait.visible_at)}"
    if rule.rule == "debounce":
        latest = (
            () if rule.latest is None else (f"at the latest it begins at {moment(rule.latest)}",)
        )
        return explanation(
            run,
            f"it is debounced: it begins {begins}, unless {key} is started again before",
            ("each start with the key replaces its input", *latest),
        )
    return explanation(
        run, f"it is throttled: {key} was started as often as is allowed, so it begins {begins}"
    )
