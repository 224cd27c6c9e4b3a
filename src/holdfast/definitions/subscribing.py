"""`app.subscribe(…)`: the part of an app that starts runs when something is published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from holdfast.codec import encode
from holdfast.definitions.options import check_options
from holdfast.definitions.schedules import StartedOptions, run_target
from holdfast.definitions.startable import Startable
from holdfast.definitions.workflows import Registry
from holdfast.errors import ConfigurationError, PayloadError
from holdfast.types import JSON, NewSubscription, RunTarget
from holdfast.values.patterns import check_pattern


class Subscribing:
    """The subscriptions of an app."""

    registry: Registry

    @property
    def subscriptions(self) -> Sequence[NewSubscription]:
        """All that the app's code is subscribed to."""
        return tuple(self.registry.subscriptions)

    def subscribe(
        self,
        pattern: str,
        workflow: Startable[Any, Any],
        *,
        match: JSON = None,
        **options: Unpack[StartedOptions],
    ) -> None:
        """Start a run of a workflow for each event of a topic that fits a pattern.

        ```python
        @app.workflow
        async def ship(ctx: Context, paid: Paid) -> None: ...

        app.subscribe("invoices.*.paid", ship, match={"country": "DE"})
        ```

        The event's payload is the input. `*` stands for one segment, `#` for any number. With
        `match`, only events whose payload contains it count. `options` are those of the runs.
        Workers write it to the database when they start. It holds as long as any worker has it: 90
        seconds after the last one of them has gone, it is paused.

        Raises InvalidName for a pattern that cannot be, ConfigurationError for options that cannot
        work and for a second subscription of the same pattern, match and workflow.
        """
        try:
            new = NewSubscription(
                pattern=check_pattern(pattern),
                target=subscribed_target(workflow, options),
                match=None if match is None else encode(match),
            )
        except (ConfigurationError, PayloadError) as error:
            raise type(error)(f"subscription to {pattern}: {error}") from None
        known = ((each.pattern, each.match, workflow_of(each)) for each in self.subscriptions)
        if (new.pattern, new.match, workflow_of(new)) in known:
            raise ConfigurationError(
                f"subscription to {pattern}: workflow {workflow.name} has it already"
            )
        self.registry.subscriptions.append(new)


def workflow_of(subscription: NewSubscription) -> str | None:
    """Return the name of the workflow that a subscription starts."""
    target = subscription.target
    return target.name if isinstance(target, RunTarget) else None


def subscribed_target(workflow: Startable[Any, Any], options: StartedOptions) -> RunTarget:
    """Return what each event starts. Raises ConfigurationError, TypeError for other options."""
    check_options(options, StartedOptions.__annotations__, "app.subscribe")
    # Callers without a type checker pass anything.
    if not isinstance(workflow, Startable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"it starts a workflow (a function under @app.workflow), not {workflow!r}"
        )
    if workflow.kind == "flow":
        raise ConfigurationError(
            f"{workflow.name} is a flow: subscribe a workflow that calls the flow"
        )
    return run_target(workflow, "null", options)
