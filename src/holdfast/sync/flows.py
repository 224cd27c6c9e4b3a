"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins

from holdfast.client.flows import Flows
from holdfast.client.naming import Named
from holdfast.compiling import CompiledFlow
from holdfast.definitions.app import App
from holdfast.sync.base import SyncGroup
from holdfast.types import FlowInfo, FlowShape


class SyncFlows(SyncGroup[Flows]):
    """The flows of all apps: each by its definition, or by its name (`app/name`).

    Their runs are in `client.runs`, as those of workflows.
    """

    def list(self) -> builtins.list[FlowInfo]:
        """Return every version of every flow that the database has, by name and version.

        ```python
        for flow in client.flows.list():
            print(flow.name, flow.version, flow.steps, flow.open_runs)
        ```
        """
        return self._call(self._target.list)

    def get(self, flow: Named | str, version: int | None = None) -> FlowShape:
        """Return the shape that the database has of a flow, by default of its newest version.

        Raises UnknownFlow.

        ```python
        shape = client.flows.get("analyze")
        print([step.slug for step in shape.steps])
        ```
        """
        return self._call(self._target.get, flow, version)

    def compile(self, app: App, *, replace: bool = False) -> builtins.list[CompiledFlow]:
        """Give the database the shapes of an app's flows; return what was found of each.

        Workers do so when they start. If the database has another shape of the same version,
        nothing is changed and ConfigurationError says what differs: give the flow a new version.
        With `replace` the shape is replaced, and its runs that have not ended are terminated.

        ```python
        for flow in client.flows.compile(app):
            print(flow.name, flow.status)
        ```
        """
        return self._call(self._target.compile, app, replace=replace)

    def check(self, app: App) -> builtins.list[CompiledFlow]:
        """Return how the flows of an app differ from those of the database; change nothing.

        ```python
        for flow in client.flows.check(app):
            print(flow.name, flow.status, *flow.differences)
        ```
        """
        return self._call(self._target.check, app)

    def delete(self, flow: Named | str, *, terminate: bool = False, force: bool = False) -> int:
        """Delete all versions of a flow with all their runs; return how many runs that were.

        While runs of it have not ended it raises FlowInUse; with `terminate` they are terminated.
        It raises FlowInUse too, and names them, if steps of other flows or schedules run the flow;
        with `force` it is deleted all the same, and those steps and ticks fail from then on.
        Nothing of the runs is left, neither their logs nor their outputs. Raises UnknownFlow.

        ```python
        deleted = client.flows.delete("analyze", terminate=True)
        print(deleted, "runs deleted")
        ```
        """
        return self._call(self._target.delete, flow, terminate=terminate, force=force)
