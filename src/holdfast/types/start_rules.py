"""Rules for starts of a workflow or a flow, as the database has them."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from holdfast.types.base import Value

# What a run awaits that has not begun because of a rule: no signal can have such a name.
SINGLETON: Final = ":singleton"
DEBOUNCE: Final = ":debounce"
THROTTLE: Final = ":throttle"

RuleKind: TypeAlias = Literal["singleton", "debounce", "throttle"]
IfEnded: TypeAlias = Literal["return", "start", "refuse"]
RefusedBy: TypeAlias = RuleKind | Literal["gone"]
SingletonConflict: TypeAlias = Literal["refuse", "return", "queue"]
ThrottleExcess: TypeAlias = Literal["delay", "refuse"]


class StartRules(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Rules for starts: a column of `start_rules` each.

    A rule is there if its first field is set. Keys are paths into the input; None means one key for
    all runs.
    """

    singleton_conflict: SingletonConflict | None = None
    singleton_key: str | None = None
    debounce_seconds: float | None = None
    debounce_key: str | None = None
    debounce_max_wait_seconds: float | None = None
    throttle_limit: int | None = None
    throttle_period_seconds: float | None = None
    throttle_key: str | None = None
    throttle_excess: ThrottleExcess | None = None


class DeclaredRules(Value, frozen=True):
    """The rules of a workflow or a flow, `app/name`, in a program; None if it has none."""

    name: str
    version: int
    rules: StartRules | None


class StartWait(Value, frozen=True):
    """The rule that a run waits for before it begins.

    A singleton waits for the end of `active_run_id`, and `place` counts from 1, the next. A
    debounce ends at `latest`, however often the workflow is started.
    """

    rule: RuleKind
    key: str
    active_run_id: UUID | None = None
    place: int | None = None
    latest: int | None = None


class HeldKey(Value, frozen=True):
    """A key that a rule for starts holds now.

    Of a singleton, `run_id` is the active run, and `waiting` runs wait for its end. Of a debounce,
    `run_id` begins at `until` if it is not started again before. Of a throttle, no further run with
    the key begins before `until`. Moments are microseconds since 1970.
    """

    rule: RuleKind
    key: str
    run_id: UUID | None
    waiting: int
    until: int | None


class RulesOfStart(Value, frozen=True, omit_defaults=True):
    """The rules that a start brings along.

    `declared` are those of the workflow in the program that starts it: they hold until a worker has
    declared some. `given` are the fields of `StartRules` that this start has instead. With `after`
    the run takes the key of this run, which has ended, and must not be deleted meanwhile.
    """

    declared: StartRules | None = None
    given: dict[str, Any] | None = None
    after: UUID | None = None
