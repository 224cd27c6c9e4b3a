"""Refuse shapes that cannot be."""

from __future__ import annotations

import json
import re
from typing import Final, get_args

from holdfast.errors import InvalidInput
from holdfast.store.memory.payloads import check_version, checked
from holdfast.types import FlowShape, StepShape, TriggerRule
from holdfast.values.durations import LONGEST_SECONDS
from holdfast.values.names import check_queue_name
from holdfast.values.texts import check_id

_LONGEST: Final = 128
_LARGEST: Final = 2**31 - 1  # that a column holds
_slug: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_handler: Final = re.compile(r"[^@]+@[1-9][0-9]{0,8}")
_app: Final = re.compile(r"[a-zA-Z0-9._-]+")


def check_shape(shape: FlowShape, shape_hash: str) -> None:
    """Raise InvalidInput for a shape that no flow can have."""
    app, slash, slug = shape.name.rpartition("/")
    if (slash and not _fits(_app, app)) or not _fits(_slug, slug):
        raise InvalidInput(f"{shape.name!r} cannot be the name of a flow")
    check_version(shape.version)
    check_id("the hash", shape_hash)
    _check_options(shape.queue, shape.max_attempts, shape.base_delay, shape.timeout)
    before: set[str] = set()
    for step in shape.steps:
        _check_step(step, before)
        before.add(step.slug)
    check_rules(shape)


def check_rules(shape: FlowShape) -> None:
    """Raise InvalidInput for a trigger rule that a step cannot have, or that has none to follow."""
    last = {step.slug for step in shape.steps if step.trigger_rule == "always"}
    for step in shape.steps:
        rule, reason = step.trigger_rule, None
        if rule not in get_args(TriggerRule):
            reason = "rules are none_failed, all_done, one_failed and always"
        elif rule == "none_failed":
            pass
        elif step.kind == "map":
            reason = "a map has none: it needs the elements"
        elif step.runs is not None:
            reason = "it is a run"
        elif rule != "always" and not step.deps:
            reason = "it depends on no step"
        elif rule == "one_failed" and step.when_unmet == "fail":
            reason = "the run would fail because nothing failed: when_unmet is skip or skip-cascade"
        elif rule == "always" and (step.required, step.forbidden) != (None, None):
            reason = "a step that always runs has no patterns"
        if reason is not None:
            raise InvalidInput(f"step {step.slug} cannot have trigger_rule {rule}: {reason}")
        for dep in sorted(last & set(step.deps)):
            raise InvalidInput(
                f"step {step.slug} depends on {dep}, which always runs at the end: no step comes "
                "after it"
            )
    if last and len(last) == len(shape.steps):
        raise InvalidInput(
            f"step {shape.steps[0].slug} always runs at the end: the shape needs a step that comes "
            "before it"
        )


def _fits(pattern: re.Pattern[str], text: str) -> bool:
    return len(text) <= _LONGEST and pattern.fullmatch(text) is not None


def _check_step(step: StepShape, before: set[str]) -> None:
    """Raise InvalidInput for a step that cannot be, or that depends on none of those before it."""
    if not _fits(_slug, step.slug) or step.slug == "run":
        raise InvalidInput(f"{step.slug!r} cannot be the slug of a step")
    if step.slug in before:
        raise InvalidInput(f"the shape has step {step.slug} twice")
    _check_options(step.queue, step.max_attempts, step.base_delay, step.timeout)
    _check_seconds("start_delay", step.start_delay)
    if step.kind == "map" and len(step.deps) > 1:
        raise InvalidInput(f"map step {step.slug} takes its elements from one step")
    if not before.issuperset(step.deps) or len(set(step.deps)) < len(step.deps):
        raise InvalidInput(f"step {step.slug} depends on steps that are not before it, or twice")
    if step.runs is not None and (
        _handler.fullmatch(step.runs) is None or step.runs_kind is None or len(step.deps) > 1
    ):
        raise InvalidInput(
            f"step {step.slug} runs name@version of a workflow or a flow (runs_kind), and depends "
            "on one step at most"
        )
    _check_more(step)
    for pattern in (step.required, step.forbidden):
        if pattern is not None and not _is_object(pattern):
            raise InvalidInput(f"the patterns of step {step.slug} are texts of JSON objects")


def _check_more(step: StepShape) -> None:
    """Raise InvalidInput for options that only maps have, and values that cannot be."""
    count, percent, concurrency = step.tolerated_count, step.tolerated_percent, step.concurrency
    reason = None
    if step.kind != "map" and (count, percent, concurrency) != (None, None, None):
        reason = "tolerated_count, tolerated_percent and concurrency are options of maps"
    elif count is not None and not 0 <= count <= _LARGEST:
        reason = f"tolerated_count is 0 or more, not {count}"
    elif percent is not None and not 0 <= percent <= 100:
        reason = f"tolerated_percent is 0 to 100, not {percent}"
    elif concurrency is not None and not 1 <= concurrency <= _LARGEST:
        reason = f"concurrency is 1 or more, not {concurrency}"
    if step.jitter_percent is not None and not 0 <= step.jitter_percent <= 100:
        reason = f"jitter_percent is 0 to 100, not {step.jitter_percent}"
    if reason is not None:
        raise InvalidInput(f"step {step.slug}: {reason}")


def _check_options(
    queue: str | None, max_attempts: int | None, base_delay: int | None, timeout: int | None
) -> None:
    if queue is not None:
        checked(check_queue_name, queue)
    if max_attempts is not None and not 1 <= max_attempts <= _LARGEST:
        raise InvalidInput(f"max_attempts is 1 or more, not {max_attempts}")
    _check_seconds("base_delay", base_delay)
    if timeout is not None and not 1 <= timeout <= _LARGEST:
        raise InvalidInput(f"a timeout is 1 second or more, not {timeout}")


def _check_seconds(what: str, seconds: int | None) -> None:
    if seconds is not None and not 0 <= seconds <= min(LONGEST_SECONDS, _LARGEST):
        raise InvalidInput(f"{what} is 0 to {_LARGEST} seconds, not {seconds}")


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
