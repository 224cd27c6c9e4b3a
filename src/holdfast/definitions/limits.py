"""Limits as programs declare them: how many at once, how many in a period, in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import msgspec

from holdfast.definitions.options import option
from holdfast.definitions.signatures import Signature
from holdfast.errors import ConfigurationError
from holdfast.types import Holds, LimitRule, LimitScope
from holdfast.values.durations import Duration, seconds
from holdfast.values.key_paths import check_key_path
from holdfast.values.numbers import true_or_false, whole_number

_SHORTEST: Final = 0.001
_LONGEST: Final = 1e9
CALL: Final = "call"  # units that the call of an activity says


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
        whole_number(self.most, "Limit", "most", 1)
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

    With `units`, what begins in such a time uses at most `most` units together, such as the tokens
    of a model. It is the path of their number in the input; of an activity also a function that
    gets the arguments of a call and returns it, or `"call"` where the functions of other programs
    do. A call that has more than `most` uses all of them. What an attempt has really used, it may
    say by `current_activity().set_units()`.

    >>> Rate(100, per="1m", key="input.customer")
    Rate(most=100, per='1m', key='input.customer', smooth=False, units=None)
    """

    most: int
    per: Duration
    key: str | None = None
    smooth: bool = False
    units: str | Callable[..., float] | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for a rate that lets nothing begin, or a key that cannot be."""
        whole_number(self.most, "Rate", "most", 1)
        true_or_false(self.smooth, "Rate: smooth")
        _check_key("Rate", self.key)
        _length("Rate", self.per)
        if self.units is not None and self.smooth:
            raise ConfigurationError("Rate: smooth is for tasks; a rate of units cannot be smooth")
        if self.units not in (None, CALL) and not callable(self.units):
            with option("Rate", "units"):
                check_key_path(self.units)

    def rule(self, scope: LimitScope, name: str) -> LimitRule:
        """Return what the rate says about a queue, a workflow or an activity.

        Raises ConfigurationError for units that calls say, if it is not of an activity.
        """
        units = CALL if callable(self.units) else self.units
        if units == CALL and scope != "activity":
            raise ConfigurationError(
                f"{scope} {name}: who starts its tasks need not have this code, so their units are "
                "a path into the input, such as input.tokens"
            )
        return LimitRule(
            scope=scope,
            name=name,
            kind="rate" if units is None else "units",
            most=self.most,
            period_seconds=_length("Rate", self.per),
            key=self.key or "",
            smooth=self.smooth if units is None else None,
            units=units,
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
_NEEDED: Final[Mapping[type[AnyLimit], str]] = {
    Limit: "a whole number or a Limit",
    Rate: 'a Rate, such as Rate(100, per="1m"),',
    Fairness: "a path, such as input.customer, or a Fairness",
    Ageing: "an Ageing",
}
Concurrency: TypeAlias = int | Limit | Sequence[Limit]
Rates: TypeAlias = Rate | Sequence[Rate]


def limits_of(
    of: str,
    concurrency: Concurrency | None,
    rate: Rates | None,
    fairness: Fairness | str | None = None,
    ageing: Ageing | None = None,
) -> tuple[AnyLimit, ...]:
    """Return the limits among the options of a definition. `of` names it in errors.

    Raises ConfigurationError for a value of another type, and for two limits with one key.
    """
    found: list[AnyLimit] = []
    with option(of, "concurrency"):
        found += _each(concurrency, Limit)
    with option(of, "rate"):
        found += _each(rate, Rate)
    with option(of, "fairness"):
        found += _each(Fairness(fairness) if isinstance(fairness, str) else fairness, Fairness)
    with option(of, "ageing"):
        found += _each(ageing, Ageing)
    places = [
        (type(each), getattr(each, "key", None) or "", bool(getattr(each, "units", None)))
        for each in found
    ]
    for place in places:
        if places.count(place) > 1:
            _, key, _ = place
            about = f"with the key {key}" if key else "without a key"
            raise ConfigurationError(f"{of}: two limits {about} would contradict each other")
    return tuple(found)


def of_signature(rule: LimitRule, signature: Signature) -> LimitRule:
    """Return a limit of an activity with the paths of its key and units in the recorded arguments.

    Raises ConfigurationError as `in_arguments` does.
    """
    units = rule.units
    if units not in (None, CALL):
        units = in_arguments(units, rule.name, signature)
    key = in_arguments(rule.key, rule.name, signature)
    return msgspec.structs.replace(rule, key=key, units=units)


def in_arguments(text: str, name: str, signature: Signature) -> str:
    """Return a path that begins with a parameter as paths in the recorded arguments of a call.

    `input.NAME` is a parameter, which a call may give by its place or by its name. `name` is that
    of the activity. Raises ConfigurationError for a parameter that the function does not have.
    """
    _, *path = text.split(".")
    if not path:
        return text
    try:
        starts = signature.paths_to(path[0])
    except KeyError:
        names = ", ".join(each.name for each in signature.parameters)
        raise ConfigurationError(
            f"the path {text} names no parameter of {name}: it has {names}"
        ) from None
    return "|".join(".".join(("input", start, *path[1:])) for start in starts)


def units_of_call(of: str, limits: Iterable[AnyLimit]) -> Callable[..., float] | None:
    """Return the function that counts the units of calls, None if there is none.

    Raises ConfigurationError for two functions: a call has one number.
    """
    found = {each.units for each in limits if isinstance(each, Rate) and callable(each.units)}
    if len(found) > 1:
        raise ConfigurationError(f"{of}: two functions count the units of its calls: give one")
    return next(iter(found), None)


def _each(given: object, kind: type[AnyLimit]) -> list[AnyLimit]:
    if given is None:
        return []
    if kind is Limit and isinstance(given, int) and not isinstance(given, bool):
        return [Limit(given)]
    some = cast("Iterable[object]", given if isinstance(given, list | tuple) else (given,))
    found: list[AnyLimit] = []
    for each in some:
        if not isinstance(each, kind):
            raise ConfigurationError(f"{_NEEDED[kind]} is needed, not {each!r}")
        found.append(each)
    return found


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
