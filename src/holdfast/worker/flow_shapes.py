"""Compiling flows at a worker's start: the database gets the shapes that the code has."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from holdfast.definitions.workflows import AnyFlow
from holdfast.errors import ConfigurationError
from holdfast.flows import differences, shape_hash
from holdfast.store.port import Store
from holdfast.types import EnsuredFlow, FlowShape, Notice

logger = logging.getLogger("holdfast.worker")


async def compile_flows(
    store: Store,
    flows: Iterable[AnyFlow],
    notify: Callable[[list[Notice]], None],
    *,
    replace: bool = False,
) -> list[tuple[FlowShape, EnsuredFlow]]:
    """Make the database's shape of each flow that of the code; return what was found of each.

    With `replace`, another shape of the same version is replaced, and the runs of it that have
    not ended are terminated. Otherwise it raises ConfigurationError, which says what differs.
    """
    done: list[tuple[FlowShape, EnsuredFlow]] = []
    for flow in flows:
        shape = flow.shape
        ensured = await store.ensure_flow(shape, shape_hash(shape), replace=replace)
        if ensured.status == "mismatch":
            raise ConfigurationError(_mismatch(shape, ensured))
        if ensured.status == "replaced":
            logger.warning(
                "flow %s was replaced: %d run(s) of it were terminated",
                shape.handler,
                ensured.ended,
            )
        notify(list(ensured.notices))
        done.append((shape, ensured))
    return done


def _mismatch(shape: FlowShape, ensured: EnsuredFlow) -> str:
    found = [] if ensured.found is None else differences(shape, ensured.found)
    return (
        f"flow {shape.handler} is not the one that the database has: {'; '.join(found)}. Runs keep "
        f"the shape that they started with, so give the new one version={shape.version + 1}, or "
        f"replace the old one, which ends its runs: holdfast flows compile --replace"
    )
