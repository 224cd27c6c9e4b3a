"""Compile flows: the database gets the shapes that the code has, or it is said how they differ.

Workers do it when they start, clients and the command line when they are asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, Protocol

from holdfast.errors import ConfigurationError
from holdfast.flows import differences, find_circle, flows_run, shape_hash
from holdfast.store.port import Store
from holdfast.store.shared_calls import persist
from holdfast.types import FlowShape, Notice, Value
from holdfast.values.composing import compose


class Shaped(Protocol):
    """A flow, as far as its shape goes."""

    @property
    def shape(self) -> FlowShape: ...


class CompiledFlow(Value, frozen=True, kw_only=True):
    """A flow of the code, compared with the shape that the database has of this version.

    `verified`: the database has the same. `compiled`: it had none, and has this one now.
    `replaced`: it had another one, and `ended` runs of it were terminated. Only `check` says
    `missing` (it has none) and `different` (it has another one), of several databases also if one
    has. `differences` has a line for each difference, such as `step a: timeout 30 s in the code, 60
    s in the database`.
    """

    name: str
    version: int
    status: Literal["verified", "compiled", "replaced", "missing", "different"]
    differences: tuple[str, ...] = ()
    ended: int = 0


async def compile_flows(
    store: Store,
    flows: Iterable[Shaped],
    notify: Callable[[list[Notice]], None],
    *,
    replace: bool = False,
) -> list[CompiledFlow]:
    """Make the database's shape of each flow that of the code; return what was found of each.

    With `replace`, another shape of the same version is replaced, and the runs of it that have
    not ended are terminated. Otherwise it raises ConfigurationError, which says what differs. It
    also raises it, and changes nothing, if flows run each other in a circle.
    """
    shapes = [flow.shape for flow in flows]
    await _refuse_circles(store, shapes)
    done: list[CompiledFlow] = []
    for shape in shapes:
        ensure = partial(store.ensure_flow, shape, shape_hash(shape), replace=replace)
        ensured = await persist(ensure)
        found = await _differences(store, shape, ensured.found)
        if ensured.status == "mismatch":
            raise ConfigurationError(_mismatch(shape, found))
        notify(list(ensured.notices))
        done.append(compose(CompiledFlow, shape, ensured, differences=found))
    return done


async def check_flows(store: Store, flows: Iterable[Shaped]) -> list[CompiledFlow]:
    """Return how the flows of the code differ from those of the database; change nothing.

    Raises ConfigurationError if flows run each other in a circle.
    """
    shapes = [flow.shape for flow in flows]
    await _refuse_circles(store, shapes)
    return [await _check(store, shape) for shape in shapes]


async def _refuse_circles(store: Store, shapes: Iterable[FlowShape]) -> None:
    """Raise ConfigurationError if flows, or flows of other apps that they run, form a circle."""
    known = {shape.handler: shape for shape in shapes}
    left = list(known.values())
    while left:
        for handler in flows_run(left.pop()).keys() - known.keys():
            name, _, version = handler.rpartition("@")
            found = await store.get_flow(name, int(version))
            if found is not None:
                known[handler] = found
                left.append(found)
    if circle := find_circle(known.values()):
        listed = ", ".join(f"{flow} runs {other} in step {step}" for flow, step, other in circle)
        raise ConfigurationError(
            f"flows run each other in a circle, so that each run would start another: {listed}. "
            "Remove one of these steps, or let a workflow start the run that may be needed"
        )


async def _check(store: Store, shape: FlowShape) -> CompiledFlow:
    """Compare a flow with what each shard has: the first that differs is told, or lacks it."""
    from holdfast.store.shards import shards_of  # a worker of one database needs none of it

    shards, found = shards_of(store), list[FlowShape | None]()
    if shards is None:
        found.append(await store.get_flow(shape.name, shape.version))
    else:
        found += (await shards.present("get_flow", shape.name, shape.version)).values()
    every = [await _differences(store, shape, each) for each in found]
    lines = next(filter(None, every), ())
    return CompiledFlow(
        name=shape.name,
        version=shape.version,
        status="different" if lines else "missing" if None in found else "verified",
        differences=lines,
    )


async def _differences(store: Store, shape: FlowShape, found: FlowShape | None) -> tuple[str, ...]:
    """Return how a flow differs from the database's, which SQL may have made: see `differences`."""
    if found is None or not differences(shape, found):
        return ()
    from_code = all(
        each.from_code or (each.name, each.version) != (shape.name, shape.version)
        for each in await store.list_flows()
    )
    return tuple(differences(shape, found, from_code=from_code))


def _mismatch(shape: FlowShape, found: Iterable[str]) -> str:
    return (
        f"flow {shape.handler} is not the one that the database has: {'; '.join(found)}. Runs keep "
        f"the shape that they started with, so give the new one version={shape.version + 1}, or "
        "replace the old one, which terminates its open runs: holdfast flows compile --replace, or "
        "in development holdfast dev --replace-flows"
    )
