"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins

from holdfast.client.flows import Flows
from holdfast.client.naming import Named
from holdfast.compiling import CompiledFlow
from holdfast.definitions.app import App
from holdfast.sync.base import SyncGroup
from holdfast.types import FlowInfo, FlowShape


class SyncFlows(SyncGroup[Flows], of=Flows):
    """The flows of all apps: each by its definition, or by its name (`app/name`)."""

    def list(self) -> builtins.list[FlowInfo]:
        """Return every version of every flow that the database has, by name and version."""
        return self._call(self._target.list)

    def get(self, flow: Named | str, version: int | None = None) -> FlowShape:
        """Return the shape that the database has of a flow, by default of its newest version."""
        return self._call(self._target.get, flow, version)

    def compile(self, app: App, *, replace: bool = False) -> builtins.list[CompiledFlow]:
        """Give the database the shapes of an app's flows; return what was found of each."""
        return self._call(self._target.compile, app, replace=replace)

    def check(self, app: App) -> builtins.list[CompiledFlow]:
        """Return how the flows of an app differ from those of the database; change nothing."""
        return self._call(self._target.check, app)

    def delete(self, flow: Named | str, *, terminate: bool = False, force: bool = False) -> int:
        """Delete all versions of a flow with all their runs; return how many runs that were."""
        return self._call(self._target.delete, flow, terminate=terminate, force=force)
