"""Trigger rules: when a step of a flow runs, and what it is given of steps that failed."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

import msgspec

from holdfast.codec import decode_error
from holdfast.definitions.flow_types import type_name
from holdfast.errors import ConfigurationError
from holdfast.types import ErrorInfo, TriggerRule

FAILED: Final = "$failed"  # in what a step is given: the errors of dependencies, by name

split_payload = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def check_rule(
    rule: TriggerRule, of: str, *, is_map: bool, has_condition: bool, fails_unmet: bool
) -> TriggerRule:
    """Return a trigger rule. Raises ConfigurationError for one that the step `of` cannot have."""
    if rule not in get_args(TriggerRule):
        raise ConfigurationError(
            f"{of}: trigger_rule: {', '.join(get_args(TriggerRule))} are possible, not {rule!r}"
        )
    reason = None
    if is_map and rule != "none_failed":
        reason = "a map has no trigger rule, because it needs the elements; give it to a step"
    elif rule == "always" and has_condition:
        reason = "a step that always runs has no when and no unless; decide in its code"
    elif rule == "one_failed" and fails_unmet:
        reason = "with on_unmet fail, the run would fail because no step failed"
    if reason is not None:
        raise ConfigurationError(f"{of}: trigger_rule {rule}: {reason}")
    return rule


def check_dependencies(
    rule: TriggerRule, of: str, deps: Mapping[str, str], others: Iterable[str]
) -> None:
    """Raise ConfigurationError for dependencies that a step cannot have.

    `deps` are their rules by name, `others` those of all steps that exist.
    """
    for dep, its_rule in deps.items():
        if its_rule == "always":
            raise ConfigurationError(
                f"{of} depends on step {dep}, which always runs at the end: no step comes after it"
            )
    if rule == "always":
        if all(other == "always" for other in others):
            raise ConfigurationError(
                f"{of}: trigger_rule always: define it after a step that comes before it"
            )
    elif rule != "none_failed" and not deps:
        raise ConfigurationError(
            f"{of}: trigger_rule {rule}: a parameter must name the step that may fail"
        )


def without_error(annotation: object, source: object, of: str, *, alone: bool) -> object:
    """Return what a parameter is declared as besides `ErrorInfo`, which it must admit.

    `source` is the declared type of what it is given. With `alone` it may be only the error.
    """
    members = _members(annotation)
    if annotation is Any or annotation is object:
        return annotation
    if ErrorInfo not in members or (len(members) == 1 and not alone):
        raise ConfigurationError(
            f"{of}, and gives its error then: declare {type_name(source)} | ErrorInfo "
            "(from holdfast.types)"
        )
    others = tuple(member for member in members if member is not ErrorInfo)
    return typing.Union[others] if others else Any  # noqa: UP007 - made at run time


def _members(annotation: object) -> tuple[object, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def read_failures(payload: Mapping[str, msgspec.Raw]) -> dict[str, ErrorInfo]:
    """Return the errors of the dependencies that failed, by name. Raises InvalidInput."""
    found = payload.get(FAILED)
    if found is None:
        return {}
    return {
        slug: decode_error(error)
        for slug, error in split_payload(found).items()
        if slug not in payload
    }


def read_element_errors(payload: Mapping[str, msgspec.Raw], slug: str) -> dict[int, ErrorInfo]:
    """Return the errors of the elements of a map that completed, by index. Raises InvalidInput."""
    found = payload.get(FAILED)
    errors = None if found is None or slug not in payload else split_payload(found).get(slug)
    if errors is None:
        return {}
    return {int(index): decode_error(error) for index, error in split_payload(errors).items()}
