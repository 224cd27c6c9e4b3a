"""`client.flows`: compile flows, look at their shapes, and delete them."""

from __future__ import annotations

import builtins
from collections.abc import Collection
from functools import partial

from holdfast.client.naming import Named, check_workflow
from holdfast.client.session import Group
from holdfast.compiling import CompiledFlow, check_flows, compile_flows
from holdfast.definitions.app import App
from holdfast.definitions.workflows import AnyFlow
from holdfast.errors import InvalidInput, UnknownFlow
from holdfast.store.shared_calls import persist
from holdfast.types import FlowInfo, FlowShape
from holdfast.values.names import check_reference, is_same_name, split_name
from holdfast.values.numbers import true_or_false, whole_number
from holdfast.values.suggestions import similar_name
from holdfast.values.texts import clipped


class Flows(Group):
    """The flows of all apps: each by its definition, or by its name (`app/name`).

    Their runs are in `client.runs`, as those of workflows.
    """

    async def list(self) -> builtins.list[FlowInfo]:
        """Return every version of every flow that the database has, by name and version.

        ```python
        for flow in await client.flows.list():
            print(flow.name, flow.version, flow.steps, flow.open_runs)
        ```
        """
        return await self._session.reads.list_flows()

    async def get(self, flow: Named | str, version: int | None = None) -> FlowShape:
        """Return the shape that the database has of a flow, by default of its newest version.

        Raises UnknownFlow.

        ```python
        shape = await client.flows.get("analyze")
        print([step.slug for step in shape.steps])
        ```
        """
        name = self._name(flow)
        if version is not None:
            whole_number(version, f"flow {name}", "version", 0)
        shape = await self._session.store.get_flow(name, version)
        if shape is None:
            raise await self._unknown(name, version)
        return shape

    async def compile(self, app: App, *, replace: bool = False) -> builtins.list[CompiledFlow]:
        """Give the database the shapes of an app's flows; return what was found of each.

        Workers do so when they start. If the database has another shape of the same version,
        nothing is changed and ConfigurationError says what differs: give the flow a new version.
        With `replace` the shape is replaced, and its runs that have not ended are terminated.

        ```python
        for flow in await client.flows.compile(app):
            print(flow.name, flow.status)
        ```
        """
        session, flows = self._session, _flows_of(app)
        true_or_false(replace, "replace")
        return await compile_flows(session.store, flows, session.tell, replace=replace)

    async def check(self, app: App) -> builtins.list[CompiledFlow]:
        """Return how the flows of an app differ from those of the database; change nothing.

        ```python
        for flow in await client.flows.check(app):
            print(flow.name, flow.status, *flow.differences)
        ```
        """
        return await check_flows(self._session.store, _flows_of(app))

    async def delete(
        self, flow: Named | str, *, terminate: bool = False, force: bool = False
    ) -> int:
        """Delete all versions of a flow with all their runs; return how many runs that were.

        While runs of it have not ended it raises FlowInUse; with `terminate` they are terminated.
        It raises FlowInUse too, and names them, if steps of other flows or schedules run the flow;
        with `force` it is deleted all the same, and those steps and ticks fail from then on.
        Nothing of the runs is left, neither their logs nor their outputs. Raises UnknownFlow.

        ```python
        deleted = await client.flows.delete("analyze", terminate=True)
        print(deleted, "runs deleted")
        ```
        """
        for option, given in (("terminate", terminate), ("force", force)):
            true_or_false(given, option)
        name = (await self.get(flow)).name
        delete = partial(self._session.store.delete_flow, terminate=terminate, force=force)
        total, before, is_done = None, None, False
        while not is_done:
            deleted = await persist(partial(delete, name, before=before))
            self._session.tell(deleted.notices)
            if deleted.runs is not None:
                total = (total or 0) + deleted.runs
            name, before, is_done = deleted.name, deleted.before, deleted.is_done
        if total is None:  # another client was faster
            raise UnknownFlow(f"the database has no flow {name}")
        return total

    async def _unknown(self, name: str, version: int | None) -> UnknownFlow:
        """Return the error for a flow that the database lacks, with its versions or a like name."""
        known = await self.list()
        versions = sorted({each.version for each in known if is_same_name(name, each.name)})
        if versions:
            has = ", ".join(map(str, versions))
            return UnknownFlow(
                f"the database has no version {version} of flow {name}: it has {has}"
            )
        names = {each.name: each.name for each in known}
        names |= {split_name(each.name)[1]: each.name for each in known}
        similar = similar_name(name, names)
        meant = "" if similar is None else f" (did you mean {names[similar]}?)"
        return UnknownFlow(
            f"the database has no flow {name}{meant}: compile the app that defines it"
        )

    def _name(self, flow: Named | str) -> str:
        """Return a flow's full name; a name without an app is also that of the client's app."""
        if not isinstance(flow, str):
            return check_workflow(flow).full_name
        check_reference("a flow", flow)
        app = self._session.app
        if app is not None and "/" not in flow and any(name == flow for name, _ in app.flows):
            return f"{app.name}/{flow}"
        return flow


def _flows_of(app: App) -> Collection[AnyFlow]:
    # Callers without a type checker pass anything.
    if not isinstance(app, App):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"{clipped(app)} is not an App: give the app that has the flows")
    return app.flows.values()
