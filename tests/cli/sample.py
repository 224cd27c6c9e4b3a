"""The app of the command line's tests."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from holdfast import App, Context, Retry, StepFailed, current_step

app = App("sample")
log = logging.getLogger("sample")


@dataclass
class Order:
    id: int
    boxes: int = 1


@app.step(retry=Retry(attempts=3, base="1h", max="1h"))
async def refuse() -> None:
    raise ValueError("not today")


@app.step(retry=Retry(attempts=1))
async def break_down() -> None:
    raise ValueError("broken for good")


@app.step
async def hold(directory: str) -> int:
    """Say that it runs, and run until it is let go."""
    place = Path(directory)
    (place / f"held-{os.getpid()}").touch()
    while not (place / "let-go").exists():
        await asyncio.sleep(0.01)
    return current_step().attempt


@app.step
def hold_thread(directory: str) -> None:
    """Say that it runs, and run until it is let go, whatever else happens."""
    place = Path(directory)
    (place / f"held-{os.getpid()}").touch()
    while not (place / "let-go").exists():
        time.sleep(0.01)


@app.step
async def hold_executor(directory: str) -> None:
    """Hold a thread of the event loop's own."""
    await asyncio.to_thread(hold_thread.fn, directory)


@app.step
async def hold_own_thread(directory: str) -> None:
    """Hold a thread of an executor of its own."""
    loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor(1, "reports")
    await loop.run_in_executor(threads, hold_thread.fn, directory)


@app.step
async def utter(words: list[Any]) -> None:
    """Write words to a stream, and say so."""
    log.info("%d words", len(words), extra={"words": len(words)})
    for word in words:
        await current_step().stream("words").write(word)


@app.step
async def die_once(directory: str) -> str:
    """Kill the worker the first time."""
    mark = Path(directory) / "died"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@app.activity
async def weigh(order: int) -> float:
    return order * 1.5


@dataclass
class Terms:
    amount: float
    via: Literal["mail", "van"] = "mail"
    note: str | None = None


@app.workflow
async def speak(ctx: Context, words: list[Any]) -> None:
    await utter(words)


@app.workflow
async def double(ctx: Context, number: int) -> int:
    ctx.set_value("progress", {"number": number})
    return number * 2


@app.workflow
async def pack(ctx: Context, order: Order) -> str:
    packed = await ctx.wait_for_signal("packed")
    return f"{order.id} {packed}"


@app.workflow
async def refund(ctx: Context, number: int) -> dict[str, Any]:
    """Weigh, take items, have a child double the number, and ask for a decision."""
    items: list[str] = []

    def add(item: str) -> int:
        if item == "lead":
            raise ValueError("no lead")
        items.append(item)
        return len(items)

    ctx.handle_update("add", add)
    weight = await weigh(number)
    doubled = await double(number)
    decision = await ctx.request_approval(f"Refund order {number}?", form=Terms)
    amount = decision.values.amount if decision.values is not None else None
    return {"weight": weight, "doubled": doubled, "by": decision.by, "amount": amount, "n": items}


@app.workflow
async def sleep_long(ctx: Context) -> None:
    await asyncio.sleep(3600)


@app.workflow
async def back_off(ctx: Context) -> None:
    await refuse()


@app.workflow
async def fail(ctx: Context) -> None:
    await break_down()


@app.workflow
async def fail_later(ctx: Context) -> None:
    try:
        await break_down()
    except StepFailed:
        raise RuntimeError("a bug behind it") from None


@app.workflow
async def get_stuck(ctx: Context) -> None:
    await asyncio.to_thread(print)


@app.workflow
async def held(ctx: Context, directory: str) -> int:
    return await hold(directory)


@app.workflow
async def held_thread(ctx: Context, directory: str) -> None:
    await hold_thread(directory)


@app.workflow
async def held_executor(ctx: Context, directory: str) -> None:
    await hold_executor(directory)


@app.workflow
async def held_own_thread(ctx: Context, directory: str) -> None:
    await hold_own_thread(directory)


@app.workflow
async def fatal(ctx: Context, directory: str) -> str:
    return await die_once(directory)


@app.workflow
async def tell(ctx: Context, text: str) -> None:
    print(text)


@app.workflow
async def hash_seed(ctx: Context) -> str:
    return os.environ["PYTHONHASHSEED"]


trip = app.flow("trip", input=list[int], attempts=2, base_delay=0)


@trip.step
async def site(run: list[int]) -> list[int]:
    return run


@trip.map(site)
async def page(number: int) -> int:
    if number < 0:
        raise ValueError(f"no page {number}")
    return number * 2


@trip.step(when={"site": [99]})
async def rare(site: list[int]) -> str:
    return "99 was there"


@trip.step
async def total(page: list[int], rare: str | None) -> int:
    return sum(page)
