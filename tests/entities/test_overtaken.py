"""An entity that a worker has in memory, and whose calls another worker ends and begins."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from holdfast.definitions.entities import entity_of
from holdfast.errors import UpdateFailed
from holdfast.runtime.turn.turn import Effects, RunInfo, State, Turn
from holdfast.testing import Environment
from holdfast.types import Event
from tests.entities.carts import Cart, app


async def a_log(environment: Environment) -> list[Event]:
    """Return the log of a cart: calls that wait, that fail, and that are answered at once."""
    cart = environment.client.entity(Cart, "ann")
    for number in range(2):
        await cart.add("lamp")
        buying = asyncio.create_task(cart.buy(5))
        while not buying.done():
            await environment.advance("20s")
        await cart.add("vase", number + 1)
        with suppress(UpdateFailed):
            await cart.fail()
        with suppress(UpdateFailed):
            await cart.add("hole", -1)
    [listed] = (await environment.client.runs.list(names="carts/Cart")).runs
    return [each.event for each in await environment.client.handle(listed.run_id).log()]


def begin(log: Sequence[Event]) -> tuple[Turn, Effects]:
    """Return a turn that has replayed a log, and what it says."""
    run_id = entity_of(Cart).new_run("ann").run_id
    info = RunInfo(run_id, "carts/Cart", 1, 1, log[0].at, key="ann")
    turn = Turn(entity_of(Cart), info, 1, log, lambda: log[-1].at)
    return turn, turn.begin()


def states(effects: Effects) -> list[str | None]:
    """Return what is set by the commit that is due."""
    found = [] if effects.commit is None else effects.commit.events
    return [each.details for each in found if each.type == "ValueSet"]


async def test_the_calls_of_another_worker_change_what_is_in_memory() -> None:
    """Fault: changes that were answered were lost, also if no worker was."""
    async with Environment(app) as environment:
        log = await a_log(environment)
    looked = 0
    for end in [at for at, each in enumerate(log, 1) if each.type == "SignalReceived"]:
        whole, wanted = begin(log[:end])
        whole.abandon()
        for cut in range(2, end):
            turn, before = begin(log[:cut])
            if before.state is State.SUSPENDING and not states(before):
                turn.committed([])
                assert states(turn.resume(2, log[cut:end])) == states(wanted), (cut, end)
                looked += 1
            turn.abandon()
    assert looked > 50
