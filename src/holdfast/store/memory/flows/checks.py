"""Refuse shapes that cannot be."""

from __future__ import annotations

import json
import re
from typing import Final

from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.store.memory.payloads import check_version
from holdfast.types import FlowShape, StepShape
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
    for pattern in (step.required, step.forbidden):
        if pattern is not None and not _is_object(pattern):
            raise InvalidInput(f"the patterns of step {step.slug} are texts of JSON objects")


def _check_options(
    queue: str | None, max_attempts: int | None, base_delay: int | None, timeout: int | None
) -> None:
    if queue is not None:
        try:
            check_queue_name(queue)
        except ConfigurationError as error:
            raise InvalidInput(str(error)) from None
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
