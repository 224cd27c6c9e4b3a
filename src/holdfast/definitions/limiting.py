"""`app.queue(…)`: the part of an app that says how much runs at once."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.definitions.limits import (
    Ageing,
    AnyLimit,
    Concurrency,
    Fairness,
    Rates,
    limits_of,
    of_signature,
)
from holdfast.definitions.workflows import AnyActivity, AnyWorkflow, Registry
from holdfast.errors import ConfigurationError
from holdfast.names import check_queue_name
from holdfast.types import LimitRule, LimitScope


class Limiting:
    """The limits that an app declares."""

    registry: Registry

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

        `concurrency` is how many tasks run at once: a number, or `Limit(…)`. `rate` is
        how many begin in a period. With `fairness`, the values of a key take turns. With `ageing`,
        what waits long becomes more urgent. Raises ConfigurationError for limits that cannot be,
        and for a queue whose limits the app has declared before.

        ```python
        app.queue("mail", concurrency=5, fairness="input.tenant")
        ```
        """
        of = f"queue {check_queue_name(name)}"
        fair = Fairness(fairness) if isinstance(fairness, str) else fairness
        if ("queue", name) in self.registry.limits:
            raise ConfigurationError(f"{of}: its limits are declared twice")
        self._declare("queue", name, limits_of(of, concurrency, rate, fair, ageing))

    def _limit_workflow(
        self, workflow: AnyWorkflow, concurrency: Concurrency | None, rate: Rates | None
    ) -> None:
        """Declare limits of a workflow: those of its highest version count, for all of them."""
        limits = limits_of(f"workflow {workflow.name}", concurrency, rate)
        if workflow.version == self.registry.latest(workflow.name).version:
            self._declare("workflow", workflow.full_name, limits)

    def _limit_activity(
        self, activity: AnyActivity, concurrency: Concurrency | None, rate: Rates | None
    ) -> None:
        """Declare limits of an activity. The path of a key begins with a parameter."""
        limits = limits_of(str(activity), concurrency, rate)
        rules = [limit.rule("activity", activity.full_name) for limit in limits]
        self.registry.limits["activity", activity.full_name] = tuple(
            of_signature(rule, activity.fn) for rule in rules
        )

    def _declare(self, scope: LimitScope, name: str, limits: Iterable[AnyLimit]) -> None:
        self.registry.limits[scope, name] = tuple(limit.rule(scope, name) for limit in limits)
