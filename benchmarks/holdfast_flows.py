"""The benchmark's flows in holdfast: `holdfast worker benchmarks.holdfast_flows:app`.

A module of its own: a worker looks for work of each of its handlers, so flows beside the workflows
would be a part of what the other workloads measure. The app has the same name; it is never served
on the same database.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.flow_shapes import CHAIN_STEPS, SIDES
from holdfast import App

app = App("bench")

one = app.flow("one", input=int)
chain = app.flow("chain", input=int)
wide = app.flow("wide", input=int)
diamond = app.flow("diamond", input=int)


def _given(n: int) -> Callable[[int], Awaitable[dict[str, Any]]]:
    async def work(run: int) -> dict[str, Any]:
        return {"step": n, "ok": True}

    return work


def _after(n: int, step: Any) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def work(before: dict[str, Any] = step.output) -> dict[str, Any]:
        return {"step": n, "ok": True}

    return work


def _after_all(steps: list[Any]) -> Callable[..., Awaitable[int]]:
    """Return a function with a parameter for each step."""

    async def work(**outputs: dict[str, Any]) -> int:
        return len(outputs)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(step.slug, kind, annotation=dict) for step in steps]
    work.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    work.__annotations__ = {step.slug: dict[str, Any] for step in steps}
    return work


one.step(name="work")(_given(0))

previous = chain.step(name="work0")(_given(0))
for number in range(1, CHAIN_STEPS):
    previous = chain.step(name=f"work{number}")(_after(number, previous))


@wide.step
async def numbers(run: int) -> list[int]:
    return list(range(run))


@wide.map(numbers)
async def work(number: int) -> dict[str, Any]:
    return {"step": number, "ok": True}


top = diamond.step(name="top")(_given(0))
sides = [diamond.step(name=f"side{n}")(_after(n, top)) for n in range(SIDES)]
diamond.step(name="bottom")(_after_all(sides))

FLOWS = {"one": one, "chain": chain, "wide": wide, "diamond": diamond}
