"""Find the workflow that a name means, and the run that an id or a key means."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast
from uuid import UUID

from holdfast.definitions.app import App
from holdfast.definitions.entities import entity_of
from holdfast.definitions.startable import AnyStartable, Startable
from holdfast.errors import AmbiguousWorkflow, InvalidInput, UnknownWorkflow
from holdfast.store.port import Store
from holdfast.store.port.reads import noting_reads
from holdfast.types import NewRun, RunFilter, StartedRun
from holdfast.values.ids import keyed_run_id, read_id
from holdfast.values.loggers import get_logger
from holdfast.values.names import check_reference, full_name, split_name
from holdfast.values.suggestions import nearest
from holdfast.values.texts import check_id, clipped

W = TypeVar("W", bound="Named")

logger = get_logger("holdfast.client")

_MOST_SIMILAR = 3  # names that an error asks about
_BELIEVED_SECONDS = 1.0
_MOST_KNOWN = 10_000  # names: they come from callers


class Named(Protocol):
    """A workflow, as far as names need it."""

    @property
    def full_name(self) -> str: ...


WorkflowRef: TypeAlias = Named | type[Any] | str
RunRef: TypeAlias = UUID | str | tuple[WorkflowRef, str]
"""A run's id (as a UUID or as text), or the workflow and the key that it was started with.

The workflow is the decorated function, the class of an entity, its name with its app (`app/name`),
or its name alone if only one app has it.
"""

Lookup: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the apps that have ever signed on with a workflow of a name."""


def given_workflow(run: RunRef) -> AnyStartable | None:
    """Return the workflow that is given with a key; None for its name alone, and for an id."""
    if isinstance(run, tuple) and isinstance(run[0], Startable):
        return cast("AnyStartable", run[0])
    return None


def check_workflow(workflow: W) -> W:
    """Return the workflow or the flow that a caller gives. Raises InvalidInput for what is none."""
    given: object = workflow
    if not isinstance(given, Startable):
        raise InvalidInput(f"{clipped(workflow)} is not a workflow: pass the decorated function")
    return workflow


async def find_full_name(workflow: str, store: Store, lookup: Lookup | None = None) -> str:
    """Return the full name of the one workflow, else of the one flow, that has this name.

    Raises UnknownWorkflow if no app has ever had a worker with it, AmbiguousWorkflow if several
    apps had, InvalidInput if several have such a flow: nothing is guessed.
    """
    apps = await (lookup or store.apps_with)(workflow)
    if not apps:
        shape = await store.get_flow(workflow)
        if shape is not None:
            return shape.name
        similar = await similar_names(store, workflow)
        meant = f" (did you mean {' or '.join(similar)}?)" if similar else ""
        raise UnknownWorkflow(
            f"no app with a workflow {workflow!r} has ever had a worker on this database{meant}: "
            f"start its worker, or name the app as well, as in {full_name('APP', workflow)!r}"
        )
    if len(apps) > 1:
        raise AmbiguousWorkflow(workflow, apps)
    return full_name(apps[0], workflow)


async def unknown_name(name: str, store: Store, lookup: Lookup | None = None) -> str | None:
    """Return what is wrong with a full name that no worker has ever had; None if one had it."""
    app, own = split_name(name)
    apps = await (lookup or store.apps_with)(own)
    if app in apps:
        return None
    near = apps if lookup else await similar_names(store, own)
    similar = " or ".join([full_name(each, own) for each in apps] or near)
    meant = f" (did you mean {similar}?)" if similar else ""
    return f"app {app} has never had a worker with a workflow {own!r} on this database{meant}"


async def similar_names(store: Store, workflow: str) -> list[str]:
    """Return the full names of workflows and flows that are like this, the most similar first."""
    known = [(name, each.app) for each in await store.list_apps() for name in each.workflows]
    flows = dict.fromkeys(split_name(each.name) for each in await store.list_flows())
    known += [(name, app) for app, name in flows]
    near = nearest(split_name(workflow)[1], {name for name, _ in known}, _MOST_SIMILAR)
    return [
        full_name(app, name) if app else name
        for like in near
        for name, app in known
        if name == like
    ]


def known_full_name(workflow: WorkflowRef, app: str | None) -> str | None:
    """Return a workflow's full name, None for a name without an app.

    `app` is the client's app: it completes a name without one. Raises InvalidName, InvalidInput
    for what is not a workflow, and ConfigurationError for a class that is not an entity.
    """
    if isinstance(workflow, type):
        return entity_of(workflow).full_name
    if not isinstance(workflow, str):
        if hasattr(workflow, "full_name"):
            return workflow.full_name
        raise InvalidInput(f"{workflow!r} is not a workflow: pass the decorated function")
    name = check_reference("a workflow", workflow)
    if "/" in name:
        return name
    return None if app is None else full_name(app, name)


def reference(run: RunRef, workflow: Named | None, app: str | None) -> UUID | tuple[str, str]:
    """Return a run's id, or the name of its workflow and its key.

    The name has its app if the caller, `workflow` or `app` (the client's) says which. Raises
    InvalidName and InvalidInput.
    """
    if not isinstance(run, tuple):
        return read_id(run)
    named, key = _named_key(run)
    name = known_full_name(named, app)
    if name is None and workflow is not None and split_name(workflow.full_name)[1] == named:
        name = workflow.full_name
    return name or str(named), check_id("key", key)


def _named_key(run: tuple[WorkflowRef, str]) -> tuple[WorkflowRef, str]:
    # Callers without a type checker pass anything.
    if len(run) != 2:  # pyright: ignore[reportUnnecessaryComparison]
        raise InvalidInput(f"{clipped(run)} is not a run: give its id, or (workflow, key)")
    return run


def reference_of(run: NewRun, started: StartedRun) -> UUID | tuple[str, str]:
    """Return what a handle of a start means: the runs of its key, without one the run that began.

    A rule may give another run than that of the key.
    """
    if run.key is None or started.run_id != keyed_run_id(run.name, run.key):
        return started.run_id
    return run.name, run.key


def known_run_id(run: tuple[str, str]) -> UUID:
    """Return the id of a key's run. Raises InvalidInput if only the database knows it."""
    name, key = run
    if "/" not in name:
        raise InvalidInput(
            f"only the database knows which app has the workflow {name!r}: pass the workflow "
            f"itself, or name its app, as in ({full_name('APP', name)!r}, {key!r})"
        )
    return keyed_run_id(name, key)


class Names:
    """Looks up what callers leave out when they name workflows and runs."""

    def __init__(self, store: Store, app: App | None) -> None:
        self._store, self._app = store, app
        self._no_flows: dict[str, float] = {}  # until when they count as none
        self._checked: set[str] = set()

    async def full(self, workflow: WorkflowRef) -> str:
        """Return a workflow's full name: of the client's app, or of the one app that has it.

        Raises InvalidName, and what `find_full_name` raises.
        """
        known = known_full_name(workflow, None if self._app is None else self._app.name)
        return known or await find_full_name(str(workflow), self._store)

    async def flow(self, name: str) -> str | None:
        """Return the full name of the flow that a name means; None if there is no such flow.

        That there is none is believed for a second: a busy caller pays for no question.
        """
        now = time.monotonic()
        if now < self._no_flows.get(name, 0.0):
            return None
        shape = await self._store.get_flow(name)
        if shape is None:
            if len(self._no_flows) >= _MOST_KNOWN:
                self._no_flows.clear()
            self._no_flows[name] = now + _BELIEVED_SECONDS
            return None
        return shape.name

    async def warn_if_unknown(self, name: str, lookup: Lookup | None = None) -> None:
        """Warn, once for each full name, that no worker has ever had it: a run of it will wait."""
        if name in self._checked:
            return
        problem = await unknown_name(name, self._store, lookup)
        if len(self._checked) >= _MOST_KNOWN:
            self._checked.clear()
        self._checked.add(name)
        if problem is not None:
            logger.warning("%s: the run that is started waits until one has", problem)

    async def matching(self, workflows: Iterable[WorkflowRef]) -> tuple[str, ...]:
        """Return the full names that a filter means by workflows or their names.

        A name without an app stays as it is, too: flows of SQL may be called so, and runs of a
        release without apps. Raises InvalidName and AmbiguousWorkflow, and UnknownWorkflow for a
        name that no app has ever had, and no run: of the shards, all must say so.
        """
        found: dict[str, None] = {}
        for workflow in workflows:
            if not isinstance(workflow, str):
                found[await self.full(workflow)] = None
                continue
            names = {workflow: None}
            try:
                names = {await self.full(workflow): None, **names}
                await self._check_own(workflow)
            except UnknownWorkflow:
                with noting_reads() as notes:
                    page = await self._store.list_runs(RunFilter(names=tuple(names), limit=1))
                if not page.runs and not notes.away:  # a shard that is away may have had it
                    raise
            found |= names
        return tuple(found)

    async def _check_own(self, workflow: str) -> None:
        """Check a name that the client's app completes.

        Raises UnknownWorkflow if its code does not have it, and its workers never had.
        """
        if self._app is None or "/" in workflow:
            return
        try:
            self._app.startable(workflow)
        except UnknownWorkflow as error:
            name = full_name(self._app.name, workflow)
            if await self._store.get_flow(name) is None and await unknown_name(name, self._store):
                raise error

    async def run(self, run: RunRef) -> UUID:
        """Return the id of the run that is meant. Raises InvalidInput, and what `full` raises."""
        return (await self.runs([run]))[0]

    async def runs(self, runs: Iterable[RunRef]) -> list[UUID]:
        """Return the ids of runs; each name is looked up once."""
        names: dict[WorkflowRef, str] = {}
        found: list[UUID] = []
        for run in runs:
            if isinstance(run, tuple):
                workflow, key = _named_key(run)
                if workflow not in names:
                    names[workflow] = await self.full(workflow)
                found.append(keyed_run_id(names[workflow], check_id("key", key)))
            else:
                found.append(read_id(run))
        return found
