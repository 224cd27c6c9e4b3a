"""Keys of limits: their values in inputs, and the checks of limits."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import InvalidInput
from holdfast.store.memory.payloads import checked
from holdfast.types import LimitRule
from holdfast.values.key_paths import fields_of, first_key, is_key_path, key_of
from holdfast.values.names import check_queue_name, check_reference


def key_value(key: str, run_input: str, payload: str | None) -> str:
    """Return the value of a limit's key, as text; see `key_of`.

    `payload` is that of an activity, whose input counts instead of the run's.
    """
    if payload is None:
        return key_of(run_input, key)
    return first_key(payload, [["input", *fields_of(path)] for path in key.split("|")])


def check_rule(rule: LimitRule) -> None:
    """Raise InvalidInput for a limit that cannot be."""
    if rule.scope not in ("queue", "workflow", "activity"):
        raise InvalidInput(f"a scope is queue, workflow or activity, not {rule.scope!r}")
    if rule.scope == "queue":
        checked(check_queue_name, rule.name)
    else:
        checked(check_reference, f"a {rule.scope}", rule.name)
    if flaw := _flaw(rule):
        raise InvalidInput(flaw)


def _flaw(rule: LimitRule) -> str | None:
    """Return what is wrong with a rule, as PostgreSQL says it."""
    kind, counts = rule.kind, rule.kind in ("concurrency", "rate", "units")
    if kind not in ("concurrency", "rate", "units", "fairness", "ageing"):
        return f"a kind is concurrency, rate, units, fairness or ageing, not {kind!r}"
    if counts and (rule.most or 0) < 1:
        lets = f"a limit of the kind {kind} lets at least 1 task run"
        return f"{lets}: pause the {rule.scope} to stop it"
    if not counts and rule.most is not None:
        return f"a limit of the kind {kind} does not count tasks: leave out how many"
    timed = kind in ("rate", "units", "ageing")
    if timed and not 0.001 <= (rule.period_seconds or 0) <= 1e9:
        return f"a limit of the kind {kind} has a period from 0.001 s to 1e9 s"
    if not timed and rule.period_seconds is not None:
        return f"a limit of the kind {kind} does not have a period"
    return _flaw_of_key(rule)


def check_not_of_flow(rule: LimitRule, flows: Iterable[str]) -> None:
    """Refuse a limit of the runs of a flow. Raises InvalidInput."""
    of_runs = (rule.scope, rule.kind) == ("workflow", "concurrency") and rule.holds != "turn"
    if of_runs and rule.name in flows:
        raise InvalidInput(
            f"{rule.name} is a flow, and no worker holds a run of a flow: limit its steps, with a "
            "limit that holds a turn"
        )


def _flaw_of_key(rule: LimitRule) -> str | None:
    if rule.kind == "fairness" and not rule.key:
        return "fairness is between the values of a key: give its path"
    if rule.kind == "ageing" and rule.key:
        return "ageing does not have a key: it concerns all tasks"
    if rule.key and not all(map(is_key_path, rule.key.split("|"))):
        return (
            f"{rule.key!r} is not a path into the input: write input.FIELD, such as "
            "input.customer, or input for the whole"
        )
    if rule.holds is not None and rule.kind != "concurrency":
        return "only a limit of the kind concurrency says what it holds"
    if rule.holds == "run" and rule.scope == "activity":
        return "a limit of an activity holds its attempts, not runs"
    return _flaw_of_units(rule)


def _flaw_of_units(rule: LimitRule) -> str | None:
    if (rule.units is not None) != (rule.kind == "units"):
        return "a limit of the kind units says what it counts, and no other does"
    if rule.units == "call" and rule.scope != "activity":
        return "only calls of activities say their units: give a path into the input"
    if rule.units not in (None, "call") and not all(map(is_key_path, rule.units.split("|"))):
        return (
            f"{rule.units!r} is not a path into the input: write input.FIELD, such as input.tokens"
        )
    if rule.smooth and rule.kind != "rate":
        return "only a limit of the kind rate can be smooth"
    return None
