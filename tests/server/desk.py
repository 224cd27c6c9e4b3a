"""The app that the tests of pages run: each workflow shows another thing on its pages."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Literal

from holdfast import App, Context, Retry, current_step

app = App("desk")
log = logging.getLogger("desk")
log.setLevel(logging.INFO)


@dataclass
class Order:
    """What a customer wants."""

    number: int
    items: list[str] = field(default_factory=list[str])
    size: Literal["small", "large"] = "small"
    express: bool = False
    note: str = ""


@dataclass
class Terms:
    """What a refund is granted for."""

    amount: float
    reason: Literal["damaged", "late"] = "damaged"
    urgent: bool = False


@app.workflow
async def checkout(ctx: Context, input: object) -> object:
    """Do nothing with an input of any shape."""
    return input


@app.step
async def pack(item: str) -> str:
    return f"parcel with {item}"


@app.workflow
async def ship(ctx: Context, order: Order) -> list[str]:
    """Pack what was ordered, and wait for the courier."""
    parcels = await asyncio.gather(*(pack(item) for item in order.items))
    await ctx.wait_for_signal("picked-up")
    return parcels


@app.workflow
async def rest(ctx: Context, item: str) -> str:
    """Sleep a little, then pack."""
    await asyncio.sleep(0.01)
    return await pack(item)


@app.workflow
async def refund(ctx: Context, order: Order) -> str:
    """Ask a person whether money goes back."""
    decision = await ctx.request_approval(f"Refund order {order.number}?", form=Terms, timeout="1d")
    return f"{decision.values}" if decision.approved else "refused"


@app.step(retry=Retry(attempts=1))
async def draw(text: str) -> str:
    raise ValueError(f"no such font: {text}")


@app.workflow
async def render(ctx: Context, text: str) -> str:
    """Fail."""
    return await draw(text)


@app.workflow
async def deliver(ctx: Context, way: str) -> str:
    """Pack at once, or in a task of its own, by the input."""

    async def later() -> str:
        return await pack("lamp")

    if way == "air":
        return await pack("lamp")
    [parcel] = await asyncio.gather(later())
    return f"{parcel}, {way}"


@app.step
async def tick(number: int) -> int:
    return number


@app.workflow
async def count(ctx: Context, most: int) -> int:
    """Have a long log."""
    for number in range(most):
        await tick(number)
    return most


@app.workflow
async def weigh(ctx: Context, item: str) -> None:
    """Wait: what is said of it in numbers is made up by the test that shows them."""
    await ctx.wait_for_signal("weighed")


@app.step
async def tell(words: list[str]) -> None:
    """Write words to a stream and to the log."""
    out = current_step().stream("words")
    for word in words:
        log.warning("said %s", word)
        await out.write(word)


@app.workflow
async def talk(ctx: Context, words: list[str]) -> None:
    """Say some words at once, and one more after a signal."""
    await tell(words)
    log.info("listening")
    await tell([await ctx.wait_for_signal("say")])


@app.workflow
async def listen(ctx: Context, name: str) -> None:
    """Wait for a signal of any name."""
    await ctx.wait_for_signal(name)


@dataclass
class Site:
    """What is to be looked at."""

    url: str


analyze = app.flow("analyze", input=Site)


@analyze.step
async def page(run: Site) -> str:
    return f"all about {run.url}"


@analyze.step
async def links(page: str) -> list[str]:
    return ["/a", "/b", "/c"]


@analyze.map(links)
async def fetch(link: str) -> int:
    return len(link)


@analyze.step
async def report(page: str, fetch: list[int]) -> int:
    return sum(fetch)
