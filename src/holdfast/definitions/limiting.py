"""`app.queue(…)`: the part of an app that says how much runs at once."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.definitions.limits import (
    CALL,
    Ageing,
    AnyLimit,
    Concurrency,
    Fairness,
    Rates,
    limits_of,
    of_signature,
    units_of_call,
)
from holdfast.definitions.workflows import AnyActivity, AnyWorkflow, Registry
from holdfast.errors import ConfigurationError
from holdfast.payloads import Payloads
from holdfast.types import LimitRule, LimitScope
from holdfast.values.names import check_queue_name


class Limiting:
    """The limits that an app declares."""

    registry: Registry
    payloads: Payloads | None

    @property
    def limits(self) -> tuple[LimitRule, ...]:
        """All limits that the app declares; its workers write them when they start."""
        return tuple(rule for rules in self.registry.limits.values() for rule in rules)

    def queue(
        self,
        name: str,
        *,
        concurrency: Concurrency | None = None,
        rate: Rates | None = None,
        fairness: Fairness | str | None = None,
        ageing: Ageing | None = None,
    ) -> None:
        """Declare limits of a queue, which concern the work of all apps in it.

        Workers of the app serve the queue, unless they are told which queues to serve.

        `concurrency` is how many tasks run at once: a number, or `Limit(…)`. `rate` is
        how many begin in a period. With `fairness`, the values of a key take turns. With `ageing`,
        what waits long becomes more urgent. `concurrency` and `rate` also hold for the messages of
        the message queue of this name, which count for themselves: how many are in flight at once,
        and how many are received in a period. Raises ConfigurationError for limits that cannot be,
        and for a queue whose limits the app has declared before.

        ```python
        app.queue("mail", concurrency=5, fairness="input.tenant")
        ```
        """
        of = f"queue {check_queue_name(name)}"
        if ("queue", name) in self.registry.limits:
            raise ConfigurationError(f"{of}: its limits are declared twice")
        self._declare("queue", of, name, limits_of(of, concurrency, rate, fairness, ageing))

    def _limit_workflow(
        self, workflow: AnyWorkflow, concurrency: Concurrency | None, rate: Rates | None
    ) -> None:
        """Declare limits of a workflow: those of its highest version count, for all of them."""
        of, rules = f"workflow {workflow.name}", workflow.rules
        limits = limits_of(of, concurrency, rate)
        if rules is not None:
            self._check_keys(of, rules.singleton_key, rules.debounce_key, rules.throttle_key)
        if workflow.version == self.registry.latest(workflow.name).version:
            self._declare("workflow", of, workflow.full_name, limits)

    def _limit_activity(
        self, activity: AnyActivity, concurrency: Concurrency | None, rate: Rates | None
    ) -> None:
        """Declare limits of an activity. The path of a key begins with a parameter."""
        limits = limits_of(str(activity), concurrency, rate)
        rules = [limit.rule("activity", activity.full_name) for limit in limits]
        self._check_rules(str(activity), rules)
        activity.units = units_of_call(str(activity), limits)
        self.registry.limits["activity", activity.full_name] = tuple(
            of_signature(rule, activity.signature) for rule in rules
        )

    def _declare(self, scope: LimitScope, of: str, name: str, limits: Iterable[AnyLimit]) -> None:
        rules = tuple(limit.rule(scope, name) for limit in limits)
        self._check_rules(of, rules)
        self.registry.limits[scope, name] = rules

    def _check_rules(self, of: str, rules: Iterable[LimitRule]) -> None:
        for rule in rules:
            self._check_keys(of, rule.key, None if rule.units == CALL else rule.units)

    def _check_keys(self, of: str, *keys: str | None) -> None:
        """Raise ConfigurationError for the path of a key in inputs that are encoded."""
        if self.payloads is not None:
            self.payloads.check_keys(of, *keys)
