"""`app.schedule(…)`: the part of an app that starts runs by the clock."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar, Unpack, cast, overload

from holdfast.definitions.schedules import (
    AppScheduleOptions,
    Defined,
    MessageScheduleOptions,
    Schedule,
    ScheduleDecorator,
    ScheduleOptions,
    define_schedule,
    define_sender,
)
from holdfast.definitions.startable import Startable
from holdfast.definitions.workflows import Registry
from holdfast.errors import ConfigurationError

In = TypeVar("In")


class Scheduling:
    """The schedules of an app."""

    registry: Registry

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """All schedules by full name, `app/name`."""
        return MappingProxyType(self.registry.schedules)

    @overload
    def schedule(
        self,
        definition: Startable[None, Any],
        cron: str | None = None,
        /,
        *,
        name: str | None = None,
        input: None = None,
        **options: Unpack[AppScheduleOptions],
    ) -> Schedule: ...
    @overload
    def schedule(
        self,
        definition: Startable[In, Any],
        cron: str | None = None,
        /,
        *,
        input: In,
        name: str | None = None,
        **options: Unpack[AppScheduleOptions],
    ) -> Schedule: ...
    @overload
    def schedule(
        self,
        cron: str | None = None,
        /,
        *,
        topic: str,
        name: str | None = None,
        input: object = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule: ...
    @overload
    def schedule(
        self,
        cron: str | None = None,
        /,
        *,
        message_queue: str,
        name: str | None = None,
        input: object = None,
        **options: Unpack[MessageScheduleOptions],
    ) -> Schedule: ...
    @overload
    def schedule(
        self,
        cron: str | None = None,
        /,
        *,
        name: str | None = None,
        input: object = None,
        **options: Unpack[AppScheduleOptions],
    ) -> ScheduleDecorator: ...
    def schedule(
        self,
        definition: Startable[Any, Any] | str | None = None,
        cron: str | None = None,
        /,
        *,
        topic: str | None = None,
        message_queue: str | None = None,
        name: str | None = None,
        input: object = None,
        **options: Any,
    ) -> object:
        """Start a run of a workflow or a flow by the clock: at each tick of a cron expression.

        Or at an interval, with `every`. Without a workflow it is a decorator, which stands above
        `@app.workflow`; one workflow may have several, each with a `name` of its own (by default
        the workflow's). With a `topic`, each tick publishes an event there; with a `message_queue`,
        it sends a message. `input` is the payload then, and nothing runs that could overlap.

        `options` are those of `AppScheduleOptions`, of messages of `MessageScheduleOptions`.
        Workers write it to the database when they start. Raises ConfigurationError for an
        expression or options that cannot work and for a name that the app has already,
        InvalidInput for an `input` that does not fit the workflow's.

        ```python
        @app.schedule("0 9 * * 1-5", timezone="Europe/Berlin")
        @app.workflow
        async def report(ctx: Context) -> None: ...

        app.schedule(report, every="15m", name="often")
        app.schedule("@hourly", topic="clock.hour", input={"kind": "full"})
        ```
        """
        sends = topic is not None or message_queue is not None
        if definition is not None and not isinstance(definition, str):
            if sends:
                raise ConfigurationError(
                    f"a schedule starts a workflow, publishes or sends: give {definition!r}, a "
                    "topic or a message_queue"
                )
            return self._of_runs(definition, cron, name, input, options)
        if cron is not None:
            raise ConfigurationError(
                f"a schedule has one cron expression, not {definition!r} and {cron!r}"
            )
        cron = definition
        if sends:
            wishes = cast("MessageScheduleOptions", options)
            app = self.registry.name
            sender = define_sender(app, topic, message_queue, cron, name, input, wishes)
            return self.registry.add_schedule(sender)

        def decorate(definition: Defined) -> Defined:
            self._of_runs(definition, cron, name, input, options)
            return definition

        return decorate

    def _of_runs(
        self,
        definition: Startable[Any, Any],
        cron: str | None,
        name: str | None,
        input: object,
        options: Any,
    ) -> Schedule:
        schedule = define_schedule(self.registry.name, definition, cron, name, input, options)
        return self.registry.add_schedule(schedule)
