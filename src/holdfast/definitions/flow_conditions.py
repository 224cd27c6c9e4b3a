"""Conditions of steps of flows, and what it means for others that a step may be skipped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from holdfast.codec import encode_sorted
from holdfast.definitions.flow_parameters import RUN, Source
from holdfast.definitions.flow_types import field_names, may_have_field, type_name
from holdfast.definitions.options import option
from holdfast.errors import ConfigurationError, PayloadError
from holdfast.flows import canonical_pattern
from holdfast.types import StepShape
from holdfast.values.suggestions import similar_name


def may_skip(step: StepShape) -> bool:
    """Return True if a step may be skipped while those after it run."""
    return step.when_exhausted == "skip" or (_is_conditional(step) and step.when_unmet == "skip")


def may_cascade(step: StepShape, deps: Iterable[Source[Any]]) -> bool:
    """Return True if a step may be skipped with those after it: it, or one before it, says so."""
    own = step.when_exhausted == "skip-cascade" or (
        _is_conditional(step) and step.when_unmet == "skip-cascade"
    )
    return own or (step.trigger_rule == "none_failed" and any(dep.may_cascade for dep in deps))


def _is_conditional(step: StepShape) -> bool:
    rule = step.trigger_rule == "one_failed"
    return rule or step.required is not None or step.forbidden is not None


def check_pattern(
    pattern: Mapping[str, object] | None,
    name: str,
    of: str,
    run: object,
    outputs: Mapping[str, object],
) -> str | None:
    """Return a condition as canonical JSON text.

    `run` is the declared type of the run's input, `outputs` has those of the outputs of the
    dependencies of the step `of`, by name.
    Raises ConfigurationError for a condition that can never hold.
    """
    if pattern is None:
        return None
    with option(of, name):
        # Callers without a type checker pass anything.
        if not isinstance(pattern, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"a dictionary is needed, not {pattern!r}")
        if not all(isinstance(key, str) for key in pattern):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"a dictionary whose keys are text is needed, not {pattern!r}")
        _check_keys(pattern, run, outputs)
        try:
            return canonical_pattern(encode_sorted(dict(pattern)))
        except PayloadError as error:
            raise ConfigurationError(str(error)) from None


def _check_keys(pattern: Mapping[str, object], run: object, outputs: Mapping[str, object]) -> None:
    """Refuse a condition about what is not compared with it: it would never hold."""
    known = (RUN, *outputs)
    for key in pattern if outputs else ():
        if key not in known:
            raise ConfigurationError(
                f"{key!r} is not given to this step, so it cannot be compared; there are "
                f"{', '.join(known)}"
            )
    if not outputs and set(pattern) == {RUN} and not may_have_field(run, RUN):
        raise ConfigurationError(
            "for a step without dependencies the run's input itself is compared, and "
            f"{type_name(run)} has no field 'run': write what is in it"
        )
    if not outputs:
        _check_fields(pattern, run)
    for key, output in outputs.items():
        _check_output(pattern.get(key), key, output)


def _check_output(pattern: object, step: str, output: object) -> None:
    """Refuse a field that the output of a step never has: only its function writes it."""
    for field in cast("Mapping[str, object]", pattern) if isinstance(pattern, Mapping) else ():
        if not may_have_field(output, field):
            names = ", ".join(sorted(field_names(output))) or "none"
            raise ConfigurationError(
                f"the output of step {step} is {type_name(output)}, which has no field {field!r}; "
                f"its fields: {names}"
            )


def _check_fields(pattern: Iterable[str], run: object) -> None:
    """Refuse what is most likely a misspelt field. Others may come from newer programs."""
    names = field_names(run)
    for key in pattern:
        if key not in names and (near := similar_name(key, names)):
            raise ConfigurationError(f"{type_name(run)} has no field {key!r}: did you mean {near}?")


def check_needs_no_look(step: object, shape: StepShape) -> None:
    """Raise ConfigurationError for a step for which the database would look into payloads."""
    if shape.kind == "map":
        what = "a map: the database divides the list"
    elif shape.required is not None or shape.forbidden is not None:
        what = "a condition: the database compares the output with it"
    else:
        return
    raise ConfigurationError(
        f"{step} has {what}, and cannot look into payloads that are encoded by the app's "
        "payload_codec, or outside by its large_payloads. Define the flow in an app without these, "
        "or decide in a workflow"
    )
