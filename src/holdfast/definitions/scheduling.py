"""`app.schedule(…)`: the part of an app that starts runs by the clock."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar, Unpack, overload

from holdfast.definitions.schedules import (
    AppScheduleOptions,
    Defined,
    Schedule,
    ScheduleDecorator,
    define_schedule,
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
        name: str | None = None,
        input: object = None,
        **options: Unpack[AppScheduleOptions],
    ) -> object:
        """Start a run of a workflow or a flow by the clock: at each tick of a cron expression.

        Or at an interval, with `every`. Without a workflow it is a decorator, which stands above
        `@app.workflow`; one workflow may have several, each with a `name` of its own (by default
        the workflow's). `options` are those of `AppScheduleOptions`. Workers write it to the
        database when they start. Raises ConfigurationError for an expression or options that
        cannot work and for a name that the app has already, InvalidInput for an `input` that does
        not fit the workflow's.

        ```python
        @app.schedule("0 9 * * 1-5", timezone="Europe/Berlin")
        @app.workflow
        async def report(ctx: Context) -> None: ...

        app.schedule(report, every="15m", name="often")
        ```
        """

        def define(definition: Startable[Any, Any]) -> Schedule:
            schedule = define_schedule(self.registry.name, definition, cron, name, input, options)
            self.registry.add_schedule(schedule)
            return schedule

        if definition is not None and not isinstance(definition, str):
            return define(definition)
        if cron is not None:
            raise ConfigurationError(
                f"a schedule has one cron expression, not {definition!r} and {cron!r}"
            )
        cron = definition

        def decorate(definition: Defined) -> Defined:
            define(definition)
            return definition

        return decorate
