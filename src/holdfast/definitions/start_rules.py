"""Rules for starts that a workflow or a flow declares: singleton, debounce, throttle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from holdfast.definitions.flow_types import field_names, may_have_field, type_name
from holdfast.definitions.options import option
from holdfast.errors import ConfigurationError
from holdfast.key_paths import check_key_path, fields_of
from holdfast.types import RulesOfStart, SingletonConflict, StartRules


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


def rules_of(of: str, input_type: object, *, singleton: Singleton | None) -> StartRules | None:
    """Return the rules of a workflow or a flow; `of` names it in errors. None if it has none.

    Raises ConfigurationError for a rule of another class, and for a key that no input has.
    """
    fields = _given(of, input_type, singleton=singleton)
    return StartRules(**fields) if fields else None


def rules_of_start(
    of: str, input_type: object, declared: StartRules | None, *, singleton: Singleton | None
) -> str | None:
    """Return the rules that a start brings along as JSON text, None if there are none.

    Raises ConfigurationError as `rules_of` does.
    """
    given = _given(of, input_type, singleton=singleton)
    if declared is None and not given:
        return None
    return msgspec.json.encode(RulesOfStart(declared, given or None)).decode()


def _given(of: str, input_type: object, *, singleton: Singleton | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, rule, kind in (("singleton", singleton, Singleton),):
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
    if fields and not may_have_field(input_type, fields[0]) and not fields[0].isdigit():
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
