"""Alerts as programs declare them: what has to be true, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from holdfast.definitions.options import option
from holdfast.definitions.startable import Startable
from holdfast.definitions.workflows import Registry
from holdfast.errors import ConfigurationError, UnknownWorkflow
from holdfast.types import DEFAULT_QUEUE, AlertKind, AlertRule
from holdfast.values.durations import Duration, seconds
from holdfast.values.names import check_queue_name, check_reference
from holdfast.values.numbers import whole_number
from holdfast.values.patterns import check_topic

WorkflowOrName: TypeAlias = "Startable[Any, Any] | str | None"

_MOST_NAME: Final = 100
_SHORTEST: Final = 60.0  # statistics are by minute
_LONGEST: Final = 86_400.0  # and by hour when they are two days old


@dataclass(frozen=True, slots=True)
class Condition:
    """What has to be true for an alert: made by `failed`, `stuck`, `backlog`, `slow`, `no_worker`.

    `lasting_seconds` is how long it has to be true unless the alert says otherwise.
    """

    kind: AlertKind
    subject: str
    threshold: float
    within_seconds: float | None = None
    lasting_seconds: float = 0.0


def failed(
    workflow: WorkflowOrName = None, count: int = 1, *, within: Duration = "10m"
) -> Condition:
    """Return the condition that `count` runs failed or timed out `within` a time.

    Of all workflows and flows of the app, or of one: the function, its name, or `app/name`.
    `within` is from 1 minute to 1 day, and is taken to the minute. What a killed worker did in
    its last two seconds is not counted. Raises ConfigurationError for values that cannot be.
    """
    name, least = _name(workflow), _count(count)
    with option("failed", "within"):
        return Condition("failed", name, least, _within(within))


def stuck(workflow: WorkflowOrName = None, count: int = 1) -> Condition:
    """Return the condition that `count` runs are stuck, of a workflow or of all of the app.

    Raises ConfigurationError for values that cannot be.
    """
    return Condition("stuck", _name(workflow), _count(count))


def backlog(queue: str = DEFAULT_QUEUE, *, older_than: Duration = "5m") -> Condition:
    """Return the condition that a task of a queue could begin and waits longer than a time.

    Tasks that a limit holds back or that are due later do not count. Those of a queue that is
    paused do. Raises ConfigurationError for a time of 0, InvalidName for a queue that cannot be.
    """
    return Condition(
        "backlog", check_queue_name(queue), _positive("backlog", "older_than", older_than)
    )


def slow(workflow: WorkflowOrName = None, *, p95: Duration, within: Duration = "10m") -> Condition:
    """Return the condition that 5 of 100 runs that ended `within` a time took longer than `p95`.

    A run's time is from its first claim to its end. It is known to the bucket of the statistics
    that it fell into. `within` is as of `failed`. Raises ConfigurationError for values that cannot
    be.
    """
    length = _positive("slow", "p95", p95)
    with option("slow", "within"):
        return Condition("slow", _name(workflow), length, _within(within))


def no_worker(queue: str = DEFAULT_QUEUE) -> Condition:
    """Return the condition that no live worker of any app serves a queue, for 1 minute.

    A worker has to be left to see it: one of another queue or app, or a sweep. Raises InvalidName
    for a queue that cannot be.
    """
    return Condition("no_worker", check_queue_name(queue), 1.0, lasting_seconds=60.0)


class Alerting:
    """The alerts of an app."""

    registry: Registry

    @property
    def alerts(self) -> tuple[AlertRule, ...]:
        """All alerts that the app declares; its workers write them when they start.

        Raises ConfigurationError for one of a workflow that the app does not have.
        """
        return tuple(_resolved(self.registry, each) for each in self.registry.alerts.values())

    def alert(
        self, name: str, *, when: Condition, topic: str = "alerts", lasting: Duration | None = None
    ) -> None:
        """Publish an event to a topic when a condition becomes true, and one when it is over.

        ```python
        app.alert("checkout fails", when=failed("checkout", 5, within="10m"), topic="ops")
        ```

        The payload is an `AlertEvent`. One worker of those that share the database looks each 10
        seconds; there is one event for each change, whatever number of workers there is. With
        `lasting`, a change counts when it has lasted so long. Alerts are written to the database
        when a worker starts, and hold as long as a worker of the app has them or none is left; see
        `client.alerts`.

        Raises ConfigurationError for a name that the app has already or that is not 1 to 100
        characters in one line, and InvalidName for a topic that cannot be.
        """
        of = f"alert {name!r}"
        # Callers without a type checker pass anything.
        is_text = isinstance(name, str)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not (is_text and 0 < len(name) <= _MOST_NAME and name.isprintable()):
            raise ConfigurationError(f"{of}: a name has 1 to {_MOST_NAME} characters, in one line")
        if name in self.registry.alerts:
            raise ConfigurationError(f"{of}: the app has one of this name already")
        if not isinstance(when, Condition):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"{of}: when is made by failed, stuck, backlog, slow or no_worker of "
                f"holdfast.definitions, not {when!r}"
            )
        with option(of, "lasting"):
            lasts = when.lasting_seconds if lasting is None else seconds(lasting)
        self.registry.alerts[name] = AlertRule(
            name=name,
            kind=when.kind,
            subject=when.subject,
            threshold=when.threshold,
            topic=check_topic(topic),
            within_seconds=when.within_seconds,
            lasting_seconds=lasts,
        )


def _resolved(app: Registry, rule: AlertRule) -> AlertRule:
    """Return a rule with the full name of its workflow; it may be defined after the alert."""
    if not rule.subject or "/" in rule.subject or rule.kind in ("backlog", "no_worker"):
        return rule
    try:
        found = app.startable(rule.subject)
    except UnknownWorkflow as error:
        raise ConfigurationError(f"alert {rule.name!r}: {error}") from None
    return msgspec.structs.replace(rule, subject=found.full_name)


def _name(workflow: WorkflowOrName) -> str:
    if workflow is None:
        return ""
    if isinstance(workflow, Startable):
        return workflow.full_name
    return check_reference("a workflow", workflow)


def _count(count: int) -> float:
    return float(whole_number(count, "an alert", "count", 1))


def _positive(of: str, name: str, given: Duration) -> float:
    with option(of, name):
        length = seconds(given)
        if length == 0:
            raise ConfigurationError("0 s is always reached: give a longer time")
    return length


def _within(given: Duration) -> float:
    length = seconds(given)
    if not _SHORTEST <= length <= _LONGEST:
        raise ConfigurationError(f"it is from 1 minute to 1 day, not {length:g} s")
    return length
