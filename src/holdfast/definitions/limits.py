"""Limits as programs declare them: how many at once, how many in a period, in which order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import msgspec

from holdfast.definitions.options import option
from holdfast.errors import ConfigurationError
from holdfast.types import Holds, LimitRule, LimitScope
from holdfast.values.durations import Duration, seconds
from holdfast.values.key_paths import check_key_path

_SHORTEST: Final = 0.001
_LONGEST: Final = 1e9


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `most` at once, in all workers together.

    With a `key`, such as `"input.customer"`, at most so many for each value that inputs have there;
    inputs without it count together. `holds` says how long one counts. `"run"`: a run from its
    first claim to its end, also while it sleeps or waits. `"turn"`: only while a worker executes
    it. The default is `"run"` for a workflow, and `"turn"` for a queue and an activity.

    >>> Limit(5, key="input.customer")
    Limit(most=5, key='input.customer', holds=None)
    """

    most: int
    key: str | None = None
    holds: Holds | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for a limit that lets nothing run, or a key that cannot be."""
        _check_most("Limit", self.most)
        _check_key("Limit", self.key)
        if self.holds not in (None, "turn", "run"):
            raise ConfigurationError(f'Limit: holds is "turn" or "run", not {self.holds!r}')

    def rule(self, scope: LimitScope, name: str) -> LimitRule:
        """Return what the limit says about a queue, a workflow or an activity."""
        if self.holds == "run" and scope == "activity":
            raise ConfigurationError(
                f"activity {name}: a limit of an activity holds its attempts, not runs"
            )
        key = self.key or ""
        return LimitRule(
            scope=scope, name=name, kind="concurrency", most=self.most, key=key, holds=self.holds
        )


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `most` begin in any stretch of time as long as `per`, in all workers together.

    With a `key`, so many for each of its values, as with `Limit`. They begin as soon as the rate
    allows; with `smooth`, at even distances. A run counts once, when it begins; of an activity
    each attempt counts.

    >>> Rate(100, per="1m", key="input.customer")
    Rate(most=100, per='1m', key='input.customer', smooth=False)
    """

    most: int
    per: Duration
    key: str | None = None
    smooth: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigurationError for a rate that lets nothing begin, or a key that cannot be."""
        _check_most("Rate", self.most)
        _check_key("Rate", self.key)
        _length("Rate", self.per)

    def rule(self, scope: LimitScope, name: str) -> LimitRule:
        """Return what the rate says about a queue, a workflow or an activity."""
        return LimitRule(
            scope=scope,
            name=name,
            kind="rate",
            most=self.most,
            period_seconds=_length("Rate", self.per),
            key=self.key or "",
            smooth=self.smooth,
        )


@dataclass(frozen=True, slots=True)
class Fairness:
    """Let the values of a key take turns: one with much work does not delay one with little.

    >>> Fairness("input.tenant")
    Fairness(key='input.tenant')
    """

    key: str

    def __post_init__(self) -> None:
        """Raise ConfigurationError for a key that cannot be."""
        _check_key("Fairness", self.key)
        if not self.key:
            raise ConfigurationError("Fairness: give the key whose values take turns")

    def rule(self, scope: LimitScope, name: str) -> LimitRule:
        """Return what the fairness says about a queue, a workflow or an activity."""
        return LimitRule(scope=scope, name=name, kind="fairness", key=self.key)


@dataclass(frozen=True, slots=True)
class Ageing:
    """Count what waits as one priority more urgent for each `per` that it has waited.

    >>> Ageing("5m")
    Ageing(per='5m')
    """

    per: Duration

    def __post_init__(self) -> None:
        """Raise ConfigurationError for a time of 0."""
        _length("Ageing", self.per)

    def rule(self, scope: LimitScope, name: str) -> LimitRule:
        """Return what the ageing says about a queue, a workflow or an activity."""
        length = _length("Ageing", self.per)
        return LimitRule(scope=scope, name=name, kind="ageing", period_seconds=length)


AnyLimit: TypeAlias = Limit | Rate | Fairness | Ageing
Concurrency: TypeAlias = int | Limit | Sequence[Limit]
Rates: TypeAlias = Rate | Sequence[Rate]


def limits_of(
    of: str, concurrency: Concurrency | None, rate: Rates | None, *others: AnyLimit | None
) -> tuple[AnyLimit, ...]:
    """Return the limits among the options of a definition. `of` names it in errors.

    Raises ConfigurationError for a value of another type, and for two limits with one key.
    """
    found: list[AnyLimit] = []
    with option(of, "concurrency"):
        found += _each(concurrency, Limit)
    with option(of, "rate"):
        found += _each(rate, Rate)
    found += [other for other in others if other is not None]
    places = [(type(each), getattr(each, "key", None) or "") for each in found]
    for kind, key in places:
        if places.count((kind, key)) > 1:
            about = f"with the key {key}" if key else "without a key"
            raise ConfigurationError(f"{of}: two limits {about} would contradict each other")
    return tuple(found)


def of_signature(rule: LimitRule, fn: Callable[..., object]) -> LimitRule:
    """Return a limit of an activity with the paths of its key in the recorded arguments.

    `input.NAME` is a parameter, which a call may give by its place or by its name. Raises
    ConfigurationError for a parameter that the function does not have.
    """
    _, *path = rule.key.split(".")
    if not path:
        return rule
    names = [
        each.name
        for each in inspect.signature(fn).parameters.values()
        if each.kind is not inspect.Parameter.VAR_POSITIONAL
    ]
    if path[0] not in names:
        raise ConfigurationError(
            f"the key {rule.key} names no parameter of {rule.name}: it has {', '.join(names)}"
        )
    rest = "".join(f".{part}" for part in path[1:])
    by_name, by_place = f"input.1.{path[0]}{rest}", f"input.0.{names.index(path[0])}{rest}"
    return msgspec.structs.replace(rule, key=f"{by_name}|{by_place}")


def _each(given: object, kind: type[Limit | Rate]) -> list[AnyLimit]:
    if given is None:
        return []
    if kind is Limit and isinstance(given, int) and not isinstance(given, bool):
        return [Limit(given)]
    some = cast("Iterable[object]", given if isinstance(given, list | tuple) else (given,))
    found: list[AnyLimit] = []
    for each in some:
        if not isinstance(each, kind):
            raise ConfigurationError(f"expected a {kind.__name__}, got {each!r}")
        found.append(each)
    return found


def _check_most(what: str, most: object) -> None:
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise ConfigurationError(f"{what}: at least 1 must run, not {most!r}")


def _check_key(what: str, key: str | None) -> None:
    if key is not None:
        with option(what, "key"):
            check_key_path(key)


def _length(what: str, per: Duration) -> float:
    with option(what, "per"):
        length = seconds(per)
        if not _SHORTEST <= length <= _LONGEST:
            raise ConfigurationError("a period is from 0.001 s to 1,000,000,000 s long")
    return length
