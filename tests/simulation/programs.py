"""The app that the workers of the simulation run, in two releases."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict

from holdfast import (
    App,
    Context,
    Retry,
    current_activity,
    current_flow_step,
    current_message,
    current_step,
)

if TYPE_CHECKING:
    from tests.simulation.world import World

SCARCE = 2  # attempts of the limited activity at once
RELAYS = 3  # runs of a relay, one after the other

_AGAIN = Retry(attempts=40, base="200ms", max="1s")  # lost workers count as attempts


class Stage:
    """Where the app is played: in the world of the seed that runs now."""

    world: World


stage = Stage()


class Relay(TypedDict):
    """What a run of a relay hands to the next: its number, what was seen, what was done."""

    number: int
    seen: list[int]
    tokens: list[str]


class Sheet(TypedDict):
    """The input of the flow."""

    rows: int


@cache
def release(version: int) -> App:
    """Return a release of the app. The second has changed code for runs that the first began."""
    app = App("sim", retry=_AGAIN)

    @app.step
    async def act(place: str) -> str:
        """Have an effect."""
        step = current_step()
        return await stage.world.effect(step.run_id, step.key, place, version)

    @app.activity
    async def fetch(place: str) -> str:
        """Have an effect on any worker."""
        activity = current_activity()
        return await stage.world.effect(activity.run_id, activity.key, place, version)

    @app.activity(concurrency=SCARCE)
    async def scarce(place: str) -> str:
        """Have an effect, with few others at once."""
        activity = current_activity()
        return await stage.world.effect(activity.run_id, activity.key, place, version)

    @app.workflow
    async def chain(ctx: Context, n: int) -> list[str]:
        """Run steps one after the other with sleeps between them; the second release, one more."""
        tokens: list[str] = []
        for i in range(n):
            tokens.append(await act(f"chain {i} after {tokens[-1:]}"))
            await asyncio.sleep(0.7 * i)
            if version == 2 and i == 1 and ctx.patched("more"):
                tokens.append(await act("more"))
        return tokens

    @app.workflow
    async def signals(ctx: Context, n: int) -> list[list[Any]]:
        """Take signals, a step after each."""
        taken: list[list[Any]] = []
        for _ in range(n):
            payload = await ctx.wait_for_signal("go", type=int)
            taken.append([payload, await act(f"signal {payload}")])
        return taken

    @app.workflow
    async def relay(ctx: Context, relay: Relay) -> Relay:
        """Take a signal, and continue as new."""
        seen = [*relay["seen"], await ctx.wait_for_signal("go", type=int)]
        tokens = [*relay["tokens"], await act(f"relay {relay['number']}")]
        after = Relay(number=relay["number"] + 1, seen=seen, tokens=tokens)
        if after["number"] < RELAYS:
            ctx.continue_as_new(after)
        return after

    @app.workflow
    async def leaf(ctx: Context, n: int) -> list[str]:
        """Do one thing here and one elsewhere."""
        here = await act(f"leaf {n}")
        return [here, await fetch(f"leaf {n} after {here}")]

    @app.workflow
    async def parent(ctx: Context, n: int) -> list[str]:
        """Have children, and do something while they work."""
        async with asyncio.TaskGroup() as group:
            leaves = [group.create_task(ctx.child(leaf, each)) for each in range(n)]
            own = await act("parent")
        return [own, *(token for each in leaves for token in each.result())]

    @app.workflow
    async def race(ctx: Context, n: int) -> list[Any]:
        """Wait for a signal for some seconds; do one thing or the other."""
        try:
            async with asyncio.timeout(n):
                payload: int | None = await ctx.wait_for_signal("go", type=int)
        except TimeoutError:
            payload = None
        return [payload, await act(f"race {payload}")]

    @app.workflow(concurrency=1)
    async def alone(ctx: Context, n: int) -> list[str]:
        """Run while no other does, and have effects of which there are few at once."""
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(scarce(f"alone {n} {each}")) for each in range(2)]
        return [each.result() for each in both]

    @app.workflow
    async def crowd(ctx: Context, n: int) -> list[str]:
        """Have more limited effects than there may be at once."""
        return list(await asyncio.gather(*(scarce(f"crowd {each}") for each in range(n))))

    @app.workflow
    async def noted(ctx: Context, n: int) -> list[Any]:
        """Note an event, or a tick."""
        return [n, await act(f"noted {n}")]

    @app.workflow
    async def desk(ctx: Context, n: int) -> list[list[Any]]:
        """Answer updates."""
        done: list[list[Any]] = []
        enough = asyncio.Event()

        async def add(item: int) -> str:
            token = await act(f"update {item}")
            done.append([item, token])
            if len(done) == n:
                enough.set()
            return token

        ctx.handle_update("add", add)
        await enough.wait()
        return done

    @app.workflow
    async def patient(ctx: Context, n: int) -> list[str]:
        """Wait to be cancelled, and clean up."""
        try:
            await act("before")
            await asyncio.Event().wait()
        finally:
            await act("clean up")
        return []

    app.subscribe("sim.*.sent", noted)

    @app.consumer("parcels", concurrency=3, retry=_AGAIN)
    async def parcels(n: int) -> None:
        """Take a message."""
        await stage.world.consume(current_message().id, n)

    @app.workflow
    async def row(ctx: Context, n: int) -> str:
        """Be a step of a flow."""
        return await act(f"row {n}")

    sheet = app.flow("sheet", input=Sheet, attempts=40, base_delay=0)

    async def flow_effect() -> str:
        step = current_flow_step()
        return await stage.world.effect(step.run_id, step.key, step.key, version)

    @sheet.step
    async def rows(run: Sheet) -> list[int]:
        """Say what is to be done."""
        await flow_effect()
        return list(range(run["rows"]))

    @sheet.map(rows)
    async def first(n: int) -> str:
        """Have an effect for each."""
        return await flow_effect()

    @sheet.step
    async def beside(run: Sheet) -> str:
        """Have an effect while the map is under way."""
        return await flow_effect()

    sheet.run_map("each", row, over=rows)

    @sheet.step
    async def count(rows: list[int]) -> int:
        """Say how many there are."""
        return len(rows)

    sheet.run_step("last", row, of=count)

    @sheet.step
    async def joined(first: list[str], beside: str, each: list[str], last: str) -> list[str]:
        """Return what was done."""
        await flow_effect()
        return [*first, beside, *each, last]

    draft = app.flow("draft", input=int, attempts=40, base_delay=0)

    @draft.step
    async def begun(run: int) -> list[int]:
        """Be the same in each release."""
        await flow_effect()
        return list(range(run))

    @draft.map(begun, concurrency=version)
    async def drawn(n: int) -> str:
        """Have another option in each release."""
        return await flow_effect()

    if version == 1:

        @draft.step
        async def done(drawn: list[str]) -> list[str]:
            """Depend on the map alone."""
            return [*drawn, await flow_effect()]

    else:

        @draft.step(name="done")
        async def done_later(begun: list[int], drawn: list[str]) -> list[str]:
            """Depend on both."""
            return [*drawn, await flow_effect()]

    return app
