"""Rules for starts that a workflow or a flow declares: singleton, debounce, throttle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypedDict, get_args

import msgspec

from holdfast.definitions.flow_types import field_names, may_have_field, type_name
from holdfast.definitions.options import option
from holdfast.errors import ConfigurationError
from holdfast.types import RulesOfStart, SingletonConflict, StartRules, ThrottleExcess
from holdfast.values.durations import Duration, seconds
from holdfast.values.key_paths import check_key_path, fields_of, is_index
from holdfast.values.numbers import whole_number

_MOST_STARTS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Singleton:
    """At most one run for each key is active: from its start to its end, also while it waits.

    `key` is a path into the input, such as `"input.customer"`; without it all runs have one key.
    If a run is active, a start is refused with RunActive (`"refuse"`), or returns the active run
    (`"return"`), or makes a run that begins when those before it have ended (`"queue"`).

    ```python
    @app.workflow(singleton=Singleton(key="input.customer", on_conflict="return"))
    async def sync(ctx: Context, order: Order) -> None: ...
    ```
    """

    key: str | None = None
    on_conflict: SingletonConflict = "refuse"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for values that cannot work."""
        _check_key(self.key)
        _check_choice("on_conflict", self.on_conflict, get_args(SingletonConflict))

    def fields(self) -> dict[str, Any]:
        """Return the fields of `StartRules` that this rule sets."""
        return {"singleton_conflict": self.on_conflict, "singleton_key": self.key}


@dataclass(frozen=True, slots=True)
class Debounce:
    """Starts that follow each other quickly lead to one run, with the input of the last one.

    The run begins when its key has not been started for `quiet`, at the latest `max_wait` after the
    first start. `key` is a path into the input; without it all starts have one key.

    ```python
    @app.workflow(debounce=Debounce("5s", key="input.document", max_wait="1m"))
    async def index(ctx: Context, change: Change) -> None: ...
    ```
    """

    quiet: Duration
    key: str | None = None
    max_wait: Duration | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for values that cannot work."""
        _check_key(self.key)
        length = _positive("quiet", self.quiet)
        if self.max_wait is not None and _positive("max_wait", self.max_wait) < length:
            raise ConfigurationError("max_wait is shorter than quiet: it would always end first")

    def fields(self) -> dict[str, Any]:
        """Return the fields of `StartRules` that this rule sets."""
        return {
            "debounce_seconds": seconds(self.quiet),
            "debounce_key": self.key,
            "debounce_max_wait_seconds": None if self.max_wait is None else seconds(self.max_wait),
        }


@dataclass(frozen=True, slots=True)
class Throttle:
    """At most `limit` starts of a key in any period of the length `per`.

    A start in excess makes a run that begins as soon as that is possible (`"delay"`), or is refused
    with StartThrottled (`"refuse"`). `key` is a path into the input; without it all starts have
    one key.

    ```python
    @app.workflow(throttle=Throttle(10, per="1m", key="input.customer"))
    async def notify(ctx: Context, message: Message) -> None: ...
    ```
    """

    limit: int
    per: Duration
    key: str | None = None
    on_excess: ThrottleExcess = "delay"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for values that cannot work."""
        _check_key(self.key)
        whole_number(self.limit, "Throttle", "limit", 1, _MOST_STARTS)
        _positive("per", self.per)
        _check_choice("on_excess", self.on_excess, get_args(ThrottleExcess))

    def fields(self) -> dict[str, Any]:
        """Return the fields of `StartRules` that this rule sets."""
        return {
            "throttle_limit": self.limit,
            "throttle_period_seconds": seconds(self.per),
            "throttle_key": self.key,
            "throttle_excess": self.on_excess,
        }


class RuleOptions(TypedDict, total=False):
    """The rules of a workflow, a flow or a start."""

    singleton: Singleton | None
    """Allows one active run for each key."""
    debounce: Debounce | None
    """Makes one run of starts that follow each other quickly."""
    throttle: Throttle | None
    """Limits the starts within a period."""


def rules_of(of: str, input_type: object, options: RuleOptions) -> StartRules | None:
    """Return the rules of a workflow or a flow; `of` names it in errors. None if it has none.

    Raises ConfigurationError for a rule of another class, for a key that no input has, and for
    rules that do not fit each other.
    """
    fields = _given(of, input_type, options)
    if not fields:
        return None
    rules = StartRules(**fields)
    both = rules.singleton_conflict is not None and rules.debounce_seconds is not None
    if both and rules.singleton_key != rules.debounce_key:
        raise ConfigurationError(
            f"{of}: its singleton goes by {rules.singleton_key}, its debounce by "
            f"{rules.debounce_key}: give both the same key"
        )
    return rules


def rules_of_start(
    input_type: object, declared: StartRules | None, options: RuleOptions
) -> str | None:
    """Return the rules that a start brings along as JSON text, None if there are none.

    Raises ConfigurationError as `rules_of` does.
    """
    given = _given("start", input_type, options)
    if declared is None and not given:
        return None
    return msgspec.json.encode(RulesOfStart(declared, given or None)).decode()


def _given(of: str, input_type: object, options: RuleOptions) -> dict[str, Any]:
    found: dict[str, Any] = {}
    rules = (
        ("singleton", options.get("singleton"), Singleton),
        ("debounce", options.get("debounce"), Debounce),
        ("throttle", options.get("throttle"), Throttle),
    )
    for name, rule, kind in rules:
        if rule is None:
            continue
        with option(of, name):
            if not isinstance(rule, kind):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"takes a {kind.__name__}(…), not {rule!r}")
            _check_field(rule.key, input_type)
        found |= rule.fields()
    return found


def _check_field(key: str | None, input_type: object) -> None:
    """Refuse a path whose first field no input has; deeper fields are not looked at."""
    fields = [] if key is None else fields_of(key)
    if fields and not may_have_field(input_type, fields[0]) and not is_index(fields[0]):
        known = ", ".join(sorted(field_names(input_type)))
        raise ConfigurationError(
            f"the input, {type_name(input_type)}, has no field {fields[0]!r}"
            + (f"; it has {known}" if known else "")
        )


def _check_key(key: str | None) -> None:
    if key is not None:
        check_key_path(key)


def _check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(f"{name} is {', '.join(map(repr, known))}, not {value!r}")


def _positive(name: str, length: Duration) -> float:
    with option("rule", name):
        found = seconds(length)
    if found == 0:
        raise ConfigurationError(f"{name} is more than 0 s")
    return found
