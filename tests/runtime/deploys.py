"""Deploys: whole sources of an app, and changes of them that are made under an open run.

A change is made by replacing parts of a source, as an author would. `# HERE` marks the line that a
check must name. Each effect is a text that a step hands to `did`.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """\
import asyncio
from datetime import timedelta

import msgspec

from holdfast import App, Context, Retry, StepFailed

app = App("shop")


@app.step
async def reserve(item: str) -> str:
    return did(f"reserve {item}")


@app.step
async def pay(item: str) -> str:
    return did(f"pay {item}")


@app.step
async def ship(item: str) -> str:
    return did(f"ship {item}")


@app.step
async def audit(item: str) -> str:
    return did(f"audit {item}")
"""

ORDER = (
    HEAD
    + """

@app.workflow
async def order(ctx: Context, item: str) -> list[str]:
    place = await reserve(item)
    receipt = await pay(item)
    await ctx.wait_for_signal("packed")
    parcel = await ship(item)
    return [place, receipt, parcel]
"""
)

FAN = (
    HEAD
    + """

async def pay_one(item: str) -> str:
    return await pay(item)


async def reserve_all(items: list[str]) -> list[str]:
    return await asyncio.gather(*(reserve(item) for item in items))


@app.workflow
async def order(ctx: Context, item: str) -> list[str]:
    items = [f"{item} 1", f"{item} 2"]
    places = await reserve_all(items)
    receipts = await asyncio.gather(*(pay_one(each) for each in items))
    await ctx.wait_for_signal("packed")
    return [*places, *receipts, await ship(item)]
"""
)

CALLS = (
    HEAD
    + """

@app.activity
async def weigh(item: str) -> str:
    return did(f"weigh {item}")


@app.activity
async def measure(item: str) -> str:
    return did(f"measure {item}")


@app.workflow
async def label(ctx: Context, item: str) -> str:
    return await audit(item)


@app.workflow
async def order(ctx: Context, item: str) -> list[str]:
    weight = await weigh(item)
    printed = await label(item)
    ctx.set_value("progress", "labelled")
    await ctx.wait_for_signal("packed")
    return [weight, printed, await ship(item)]
"""
)

KEYED = CALLS.replace("await label(item)", 'await ctx.child(label, item, key=f"{item} 1")')

TIMED = (
    HEAD
    + """

@app.workflow
async def order(ctx: Context, item: str) -> list[str]:
    place = await reserve(item)
    await asyncio.sleep(30)
    receipt = await pay(item)
    try:
        async with asyncio.timeout(60):
            await ctx.wait_for_signal("packed")
    except TimeoutError:
        return [place, receipt, "too late"]
    return [place, receipt, await ship(item)]
"""
)

LATER = (
    HEAD
    + """
from holdfast import current_activity


@app.activity(retry=Retry(attempts=2, base="60s"))
async def weigh(item: str) -> str:
    if current_activity().attempt == 1:
        raise OSError("busy")
    return did(f"weigh {item}")


@app.workflow
async def order(ctx: Context, item: str) -> list[str]:
    place = await reserve(item)
    weight = await weigh(item)
    return [place, weight, await ship(item)]
"""
)

SIGNALS = (
    HEAD
    + """

@app.workflow
async def order(ctx: Context, item: str) -> list[str]:
    await ctx.wait_for_signal("ordered")
    receipt = await pay(item)
    await ctx.wait_for_signal("packed")
    return [receipt, await ship(item)]
"""
)

EVENTS = (
    HEAD
    + """

@app.workflow
async def order(ctx: Context, item: str) -> list[str]:
    place = ""
    try:
        await ctx.wait_for_event("orders.*", timeout=60)
    except TimeoutError:
        place = await reserve(item)
    await ctx.wait_for_signal("packed")
    return [place, await ship(item)]
"""
)

CAUGHT = (
    HEAD
    + """

@app.step(retry=Retry(attempts=1))
async def refuse(item: str) -> str:
    did(f"refuse {item}")
    raise ValueError("refused")


@app.workflow
async def order(ctx: Context, item: str) -> list[str]:
    try:
        await refuse(item)
    except StepFailed:
        place = await reserve(item)
    await ctx.wait_for_signal("packed")
    return [place, await ship(item)]
"""
)

TYPED = (
    HEAD
    + """

class Order(msgspec.Struct):
    item: str


class Receipt(msgspec.Struct):
    text: str


@app.step
async def bill(order: Order) -> Receipt:
    return Receipt(did(f"bill {order.item}"))


@app.workflow
async def order(ctx: Context, given: Order) -> list[str]:
    receipt = await bill(given)
    await ctx.wait_for_signal("packed")
    return [receipt.text, await ship(given.item)]
"""
)

LOOP = (
    HEAD
    + """

@app.workflow
async def order(ctx: Context, item: str) -> list[str]:
    made = []
    for number in (1, 2):
        made.append(await pay(f"{item} {number}"))
    await ctx.wait_for_signal("packed")
    return [*made, await ship(item)]
"""
)


# Timers that are to go away: one that waits, one around others, and one that has fired for nothing
_TIMEOUT = "    async with asyncio.timeout(60):\n    "
RUSHED = ORDER.replace(
    '    await ctx.wait_for_signal("packed")', f'{_TIMEOUT}    await ctx.wait_for_signal("packed")'
)
WAITED = ORDER.replace(
    'ctx.wait_for_signal("packed")', 'asyncio.wait_for(ctx.wait_for_signal("packed"), 60)'
)
NESTED = RUSHED.replace(
    _TIMEOUT, "    async with asyncio.timeout(600):\n        await asyncio.sleep(20)\n    "
)
FIRED = ORDER.replace(
    "    receipt",
    "    beside = asyncio.create_task(asyncio.sleep(20))\n    await asyncio.sleep(40)\n    receipt",
)

RETRIED = ORDER.replace(
    'did(f"pay {item}")', 'did(f"pay {item}") if pays.pop() else 1 / 0'
).replace(
    "@app.step\nasync def pay", "pays = [1, 0]\n\n\n@app.step(retry=Retry(base=20))\nasync def pay"
)


@dataclass(frozen=True)
class Base:
    """A source, what its run is given, and what it has done when it waits and when it ends."""

    source: str
    before: tuple[str, ...]
    after: tuple[str, ...] = ("ship lamp",)
    sent: tuple[str, ...] = ()  # signals before the deploy
    input: object = "lamp"
    seconds: int = 0  # that pass before the deploy
    served: bool = True


BASES = {
    "order": Base(ORDER, ("reserve lamp", "pay lamp")),
    "fan": Base(FAN, ("reserve lamp 1", "reserve lamp 2", "pay lamp 1", "pay lamp 2")),
    "calls": Base(CALLS, ("weigh lamp", "audit lamp")),
    "keyed": Base(KEYED, ("weigh lamp", "audit lamp")),
    "timed": Base(TIMED, ("reserve lamp", "pay lamp"), seconds=31),
    "rushed": Base(RUSHED, ("reserve lamp", "pay lamp"), seconds=30),
    "waited": Base(WAITED, ("reserve lamp", "pay lamp"), seconds=30),
    "nested": Base(NESTED, ("reserve lamp", "pay lamp"), seconds=30),
    "fired": Base(FIRED, ("reserve lamp", "pay lamp"), seconds=60),
    "retried": Base(RETRIED, ("reserve lamp",), ("pay lamp", "ship lamp")),
    "asleep": Base(TIMED, ("reserve lamp",), ("pay lamp", "ship lamp")),
    "later": Base(LATER, ("reserve lamp",), ("weigh lamp", "ship lamp"), seconds=1),
    "signals": Base(SIGNALS, ("pay lamp",), sent=("ordered",)),
    "events": Base(EVENTS, (), ("reserve lamp", "ship lamp")),
    "caught": Base(CAUGHT, ("refuse lamp", "reserve lamp")),
    "typed": Base(TYPED, ("bill lamp",), input={"item": "lamp"}),
    "loop": Base(LOOP, ("pay lamp 1", "pay lamp 2")),
    "equal": Base(LOOP.replace('f"{item} {number}"', "item"), ("pay lamp", "pay lamp")),
    "new": Base(ORDER, (), ("reserve lamp", "pay lamp", "ship lamp"), served=False),
}


@dataclass(frozen=True)
class Change:
    """A change under a run of a base: what a check says of it, and what becomes of the run.

    `edits` replace parts of the source. `check` is the kind of the finding, empty if there is none;
    `end` is what the run has come to when its signals were sent and two minutes have passed. `made`
    are effects that come besides those of the base. A run that `waits` does so until the roll-back.
    """

    name: str
    base: str
    edits: tuple[tuple[str, str], ...]
    check: str = ""
    end: str = "completed"
    made: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    waits: bool = False

    @property
    def source(self) -> str:
        """The whole new source."""
        source = BASES[self.base].source
        for old, new in self.edits:
            assert source.count(old) == 1, (self.name, old)
            source = source.replace(old, new)
        return source

    @property
    def line(self) -> int | None:
        """The line that a check must name."""
        lines = [
            number for number, line in enumerate(self.source.splitlines(), 1) if "# HERE" in line
        ]
        assert len(lines) == (self.check not in ("", "unserved")), self.name
        return lines[0] if lines else None


PAY = "    receipt = await pay(item)\n"
RESERVE = "    place = await reserve(item)\n"
WAIT = '    await ctx.wait_for_signal("packed")\n'
SHIP = "    parcel = await ship(item)\n"
STEP = "@app.step\nasync def pay(item: str) -> str:\n"
CHARGE = STEP.replace("def pay", "def charge")
FLOW = "@app.workflow\nasync def order("
HELPER = "async def take(item: str) -> str:\n    return await pay(item)\n\n\n"

CHANGES = (
    # What is always safe
    Change("a body", "order", (('did(f"pay {item}")', 'did(f"pay {item}").upper()'),)),
    Change(
        "a comment and a type", "order", ((PAY, f"    # money\n{PAY.replace(' =', ': object =')}"),)
    ),
    Change("pure code between", "order", ((PAY, f"    label = item.upper()\n{PAY}"),)),
    Change("a log line", "order", ((PAY, f'    ctx.log.info("pay")\n{PAY}'),)),
    Change(
        "a call in a function", "order", ((FLOW, HELPER + FLOW), ("= await pay(", "= await take("))
    ),
    Change(
        "options",
        "order",
        ((STEP, STEP.replace("step", 'step(retry=Retry(attempts=9), timeout="5s")')),),
    ),
    Change("a value", "order", ((PAY, f'    ctx.set_value("at", "pay")\n{PAY}'),)),
    Change(
        "a parameter with a default",
        "order",
        ((STEP, STEP.replace("str)", 'str, in_: str = "eur")')),),
    ),
    Change(
        "a step at the end",
        "order",
        ((SHIP, f"{SHIP}    await audit(item)\n"),),
        made=("audit lamp",),
    ),
    Change(
        "a step after the wait",
        "order",
        ((SHIP, f"    await audit(item)\n{SHIP}"),),
        made=("audit lamp",),
    ),
    Change(
        "a branch beside",
        "order",
        (
            (RESERVE, f"    beside = asyncio.create_task(audit(item))\n{RESERVE}"),
            (SHIP, f"    await beside\n{SHIP}"),
        ),
        made=("audit lamp",),
    ),
    Change(
        "a timeout around the wait",
        "order",
        ((WAIT, f"    async with asyncio.timeout(999):\n    {WAIT}"),),
    ),
    Change("two calls in another order", "order", ((RESERVE + PAY, PAY + RESERVE),)),
    Change(
        "two calls at once",
        "order",
        ((RESERVE + PAY, "    place, receipt = await asyncio.gather(reserve(item), pay(item))\n"),),
    ),
    Change("a call after the wait", "order", ((PAY, ""), (SHIP, PAY + SHIP))),
    Change(
        "another function name", "order", ((FLOW, '@app.workflow(name="order")\nasync def buy('),)
    ),
    Change(
        "the last step is gone", "order", ((SHIP, '    parcel = ""\n'),), missing=("ship lamp",)
    ),
    Change("a wait of an hour less", "order", ((SHIP, f"    await asyncio.sleep(1)\n{SHIP}"),)),
    # Made with care
    Change(
        "a patch before",
        "order",
        ((PAY, f'    if ctx.patched("audit"):\n        await audit(item)\n{PAY}'),),
    ),
    Change(
        "a patch around",
        "order",
        ((PAY, f'    receipt = ""\n    if not ctx.patched("free"):\n    {PAY}'),),
    ),
    Change(
        "a patch after a new wait",
        "order",
        (
            (
                PAY,
                "    await asyncio.sleep(1)\n"
                f'    if ctx.patched("audit"):\n        await audit(item)\n{PAY}',
            ),
        ),
    ),
    Change(
        "an alias",
        "order",
        (
            (STEP, CHARGE.replace("step", 'step(aliases=["pay"])')),
            ("= await pay(", "= await charge("),
        ),
    ),
    Change(
        "a kept name",
        "order",
        ((STEP, CHARGE.replace("step", 'step(name="pay")')), ("= await pay(", "= await charge(")),
    ),
    Change(
        "not careful",
        "order",
        (('App("shop")', 'App("shop", careful=False)'), (PAY, '    receipt = ""\n')),
    ),
    # Stuck
    Change(
        "a renamed step",
        "order",
        ((STEP, CHARGE), ("= await pay(item)", "= await charge(item)  # HERE")),
        "stuck",
        "stuck",
    ),
    Change(
        "a removed step",
        "order",
        ((PAY, '    receipt = ""\n'), (WAIT, WAIT[:-1] + "  # HERE\n")),
        "held",
        "stuck",
    ),
    Change(
        "another step",
        "order",
        (("= await pay(item)", "= await audit(item)  # HERE"),),
        "stuck",
        "stuck",
    ),
    Change(
        "a step before",
        "order",
        ((RESERVE, f"    await audit(item)  # HERE\n{RESERVE}"),),
        "stuck",
        "stuck",
    ),
    Change(
        "a step between",
        "order",
        ((PAY, f"    await audit(item)  # HERE\n{PAY}"),),
        "stuck",
        "stuck",
    ),
    Change(
        "a new argument",
        "order",
        (("= await pay(item)", "= await pay(item * 2)  # HERE"),),
        "stuck",
        "stuck",
    ),
    Change(
        "an id",
        "order",
        (("= await pay(item)", '= await ctx.step("pay", pay, item, id="1")  # HERE'),),
        "stuck",
        "stuck",
    ),
    Change(
        "a call in a task",
        "order",
        (
            (FLOW, HELPER.replace("(item)\n", "(item)  # HERE\n") + FLOW),
            ("= await pay(item)", "= await asyncio.create_task(take(item))"),
        ),
        "stuck",
        "stuck",
    ),
    Change(
        "a step that is an activity",
        "order",
        (
            (STEP, STEP.replace("step", "activity")),
            ("= await pay(item)", "= await pay(item)  # HERE"),
        ),
        "stuck",
        "stuck",
    ),
    Change(
        "a step that is a child",
        "order",
        (
            (STEP, "@app.workflow\nasync def pay(ctx: Context, item: str) -> str:\n"),
            ("= await pay(item)", "= await pay(item)  # HERE"),
        ),
        "stuck",
        "stuck",
    ),
    Change(
        "a bug before a recorded call",
        "order",
        ((PAY, f"    prices[item]  # HERE\n{PAY}"),),
        "stuck",
        "stuck",
    ),
    Change(
        "a bug that older code passed",
        "order",
        ((WAIT, f"    prices[item]  # HERE\n{WAIT}"),),
        "stuck",
        "stuck",
    ),
    Change(
        "a bug in a function",
        "order",
        (
            (FLOW, f"def price(item: str) -> int:\n    return prices[item]  # HERE\n\n\n{FLOW}"),
            (PAY, f"    price(item)\n{PAY}"),
        ),
        "stuck",
        "stuck",
    ),
    Change(
        "an early return",
        "order",
        ((FLOW, FLOW.replace("flow\n", "flow  # HERE\n")), (PAY, '    return [place, "", ""]\n')),
        "stuck",
        "stuck",
    ),
    Change(
        "a clock",
        "order",
        ((PAY, f"    asyncio.get_running_loop().run_in_executor(None, print)  # HERE\n{PAY}"),),
        "stuck",
        "stuck",
    ),
    Change(
        "strict",
        "order",
        (
            ('App("shop")', 'App("shop", strict=True)'),
            (PAY, '    receipt = ""\n'),
            (FLOW, FLOW.replace("flow\n", "flow  # HERE\n")),
        ),
        "stuck",
        "stuck",
    ),
    # What no log can show
    Change(
        "a bug after the wait",
        "order",
        ((SHIP, f"    prices[item]\n{SHIP}"),),
        end="failed",
        missing=("ship lamp",),
    ),
    Change(  # its timer has the key of the next one, which comes after a new step
        "a removed sleep of a run that sleeps",
        "asleep",
        (("    await asyncio.sleep(30)\n", ""),),
        end="stuck",
        made=("pay lamp",),
    ),
    # Branches
    Change(
        "a renamed function that is awaited",
        "fan",
        (("def reserve_all(", "def take_all("), ("await reserve_all(", "await take_all(")),
    ),
    Change(
        "a group in place of gather",
        "fan",
        (
            (
                "    receipts = await asyncio.gather(*(pay_one(each) for each in items))\n",
                "    async with asyncio.TaskGroup() as group:\n"
                "        tasks = [group.create_task(pay_one(each)) for each in items]\n"
                "    receipts = [task.result() for task in tasks]\n",
            ),
        ),
    ),
    Change(
        "errors that are kept",
        "fan",
        (("each in items))", "each in items), return_exceptions=True)"),),
    ),
    Change(
        "a renamed function of tasks",
        "fan",
        (
            (
                "def pay_one(item: str) -> str:\n    return await pay(item)",
                "def take(item: str) -> str:\n    return await pay(item)  # HERE",
            ),
            ("(pay_one(each)", "(take(each)"),
        ),
        "stuck",
        "stuck",
    ),
    Change(
        "one after the other",
        "fan",
        (
            (
                "await asyncio.gather(*(pay_one(each) for each in items))",
                "[await pay_one(each) for each in items]",
            ),
            ("return await pay(item)", "return await pay(item)  # HERE"),
        ),
        "stuck",
        "stuck",
    ),
    Change(
        "one more",
        "fan",
        (
            ('f"{item} 2"]', 'f"{item} 2", f"{item} 3"]'),
            ("(reserve(item) for item in items))", "(reserve(item) for item in items))  # HERE"),
        ),
        "stuck",
        "stuck",
    ),
    Change(
        "one less",
        "fan",
        (
            ('f"{item} 1", ', ""),
            ("(reserve(item) for item in items))", "(reserve(item) for item in items))  # HERE"),
        ),
        "stuck",
        "stuck",
    ),
    Change(
        "another order",
        "fan",
        (
            ('[f"{item} 1", f"{item} 2"]', '[f"{item} 2", f"{item} 1"]'),
            ("(reserve(item) for item in items))", "(reserve(item) for item in items))  # HERE"),
        ),
        "stuck",
        "stuck",
    ),
    # Activities and children
    Change(
        "options of an activity",
        "calls",
        (
            (
                "@app.activity\nasync def weigh",
                '@app.activity(start_to_close="5s")\nasync def weigh',
            ),
        ),
    ),
    Change(
        "the code of a child",
        "calls",
        (("    return await audit(item)\n", "    return await pay(item)\n"),),
    ),
    Change(
        "both at once",
        "calls",
        (
            (
                "    weight = await weigh(item)\n    printed = await label(item)\n",
                "    weight, printed = await asyncio.gather(weigh(item), label(item))\n",
            ),
        ),
    ),
    Change("another value", "calls", (('"labelled"', '"done"'),)),
    Change(
        "an approval after them",
        "calls",
        (("    return [weight", '    await ctx.request_approval("send?")\n    return [weight'),),
        end="waiting",
        missing=("ship lamp",),
    ),
    Change(
        "another type of an activity that is tried again",
        "later",
        (
            ("weigh(item: str)", "weigh(item: int)"),
            ('@app.activity(retry=Retry(attempts=2, base="60s"))', "@app.activity  # HERE"),
        ),
        "held",
        "waiting",
        waits=True,
    ),
    Change(
        "a field more of an activity that is tried again",
        "later",
        (("weigh(item: str)", "weigh(item: str, grams: bool = True)"),),
    ),
    Change(
        "a type that takes the old one", "later", (("weigh(item: str)", "weigh(item: int | str)"),)
    ),
    Change(
        "another activity",
        "calls",
        (("await weigh(item)", "await measure(item)  # HERE"),),
        "stuck",
        "stuck",
    ),
    Change(
        "another input of an activity",
        "calls",
        (("await weigh(item)", "await weigh(item * 2)  # HERE"),),
        "stuck",
        "stuck",
    ),
    Change(
        "an activity that is a step",
        "calls",
        (
            ("@app.activity\nasync def weigh", "@app.step\nasync def weigh"),
            ("await weigh(item)", "await weigh(item)  # HERE"),
        ),
        "stuck",
        "stuck",
    ),
    Change(
        "another child",
        "calls",
        (
            ("@app.workflow\nasync def label", "@app.workflow\nasync def sticker"),
            ("await label(item)", "await sticker(item)  # HERE"),
        ),
        "stuck",
        "stuck",
    ),
    Change(
        "another input of a child",
        "calls",
        (("await label(item)", "await label(item * 2)  # HERE"),),
        "stuck",
        "stuck",
    ),
    Change(
        "another key of a child",
        "keyed",
        ((', key=f"{item} 1")', ', key=f"{item} 2")  # HERE'),),
        "stuck",
        "stuck",
    ),
    Change("no key of a child", "keyed", ((', key=f"{item} 1")', ")  # HERE"),), "stuck", "stuck"),
    Change(
        "a new key of a child",
        "calls",
        (("await label(item)", 'await ctx.child(label, item, key="1")  # HERE'),),
        "stuck",
        "stuck",
    ),
    Change(
        "a key that is computed otherwise",
        "keyed",
        (('key=f"{item} 1")', 'key=item + " 1", priority=0)'),),
    ),
    Change(
        "a removed child",
        "calls",
        (("await label(item)", '""'), (WAIT, WAIT[:-1] + "  # HERE\n")),
        "held",
        "stuck",
    ),
    # Timers
    Change(
        "a removed sleep",
        "timed",
        (
            ("    await asyncio.sleep(30)\n", ""),
            ("asyncio.timeout(60):", "asyncio.timeout(60):  # HERE"),
        ),
        "stuck",
        "stuck",
    ),
    Change("a removed timeout", "timed", (("asyncio.timeout(60)", "asyncio.timeout(None)"),)),
    Change(
        "a removed timeout that has cancelled nothing",
        "rushed",
        (("    async with asyncio.timeout(60):\n    ", ""),),
    ),
    Change(
        "a removed wait_for that has cancelled nothing",
        "waited",
        (('asyncio.wait_for(ctx.wait_for_signal("packed"), 60)', 'ctx.wait_for_signal("packed")'),),
    ),
    Change(  # no log can show it: the sleep gets the number of the timeout when it is made
        "a removed timeout before a sleep",
        "rushed",
        (
            ("    async with asyncio.timeout(60):\n    ", ""),
            (SHIP, f"    await asyncio.sleep(30)\n{SHIP}"),
        ),
        end="stuck",
    ),
    Change(
        "a removed timeout around recorded sleeps",
        "nested",
        (
            (
                "    async with asyncio.timeout(600):\n        await asyncio.sleep(20)\n    ",
                "    await asyncio.sleep(20)  # HERE\n",
            ),
        ),
        "stuck",
        "stuck",
    ),
    Change(
        "a removed timer that has fired",
        "fired",
        (("    beside = asyncio.create_task(asyncio.sleep(20))\n", ""),),
    ),
    Change(
        "a removed step and a removed timeout",
        "rushed",
        (
            (PAY, '    receipt = ""\n'),
            ("    async with asyncio.timeout(60):\n    ", ""),
            ('("packed")', '("packed")  # HERE'),
        ),
        "held",
        "stuck",
    ),
    Change(
        "a removed step that is to be tried again",
        "retried",
        ((PAY, '    receipt = ""\n'), (WAIT, WAIT[:-1] + "  # HERE\n")),
        "held",
        "stuck",
    ),
    Change(
        "a removed step before a wait that looks up now and then",
        "order",
        (
            (PAY, '    receipt = ""\n'),
            (
                WAIT,
                "    while True:\n"
                "        try:\n"
                '            await ctx.wait_for_signal("packed", timeout=60)  # HERE\n'
                "            break\n"
                "        except TimeoutError:\n"
                "            pass\n",
            ),
        ),
        "held",
        "stuck",
    ),
    Change(
        "a sleep with an id",
        "timed",
        (("sleep(30)\n", 'sleep(30)\n    await ctx.sleep(5, id="pause")\n'),),
    ),
    Change(
        "another sleep",
        "timed",
        (("sleep(30)\n", "sleep(30)\n    await asyncio.sleep(5)  # HERE\n"),),
        "stuck",
        "stuck",
    ),
    Change(
        "a longer sleep",
        "timed",
        (("asyncio.sleep(30)", "asyncio.sleep(40)  # HERE"),),
        "stuck",
        "stuck",
    ),
    Change(
        "a longer timeout",
        "timed",
        (("asyncio.timeout(60):", "asyncio.timeout(90):  # HERE"),),
        "stuck",
        "stuck",
    ),
    Change(
        "a step after the sleep",
        "asleep",
        ((PAY, f"    await audit(item)\n{PAY}"),),
        made=("audit lamp",),
    ),
    Change(
        "a renamed step to come", "asleep", ((STEP, CHARGE), ("= await pay(", "= await charge("))
    ),
    Change(
        "a longer sleep of a run that sleeps",
        "asleep",
        (("asyncio.sleep(30)", "asyncio.sleep(40)  # HERE"),),
        "stuck",
        "stuck",
    ),
    Change(
        "a step removed before the sleep",
        "asleep",
        ((RESERVE, '    place = ""\n'), ("sleep(30)\n", "sleep(30)  # HERE\n")),
        "held",
        "stuck",
    ),
    # Signals
    Change("a wait that is gone", "signals", (('    await ctx.wait_for_signal("ordered")\n', ""),)),
    Change("a timeout of a wait", "signals", (('("ordered")', '("ordered", timeout=60)'),)),
    Change(
        "a renamed signal", "signals", (('("ordered")', '("placed")  # HERE'),), "stuck", "stuck"
    ),
    Change(
        "a renamed signal that a run waits for",
        "order",
        (('("packed")', '("boxed")  # HERE'),),
        "held",
        "waiting",
        missing=("ship lamp",),
    ),
    Change(
        "a new signal before recorded calls",
        "order",
        ((RESERVE, f'    await ctx.wait_for_signal("go")  # HERE\n{RESERVE}'),),
        "held",
        "stuck",
    ),
    Change(
        "another pattern of events",
        "events",
        (('("orders.*", timeout=60)', '("order.*", timeout=60)  # HERE'),),
        "stuck",
        "stuck",
    ),
    Change(
        "another signal besides",
        "order",
        (
            (
                WAIT,
                '    more = asyncio.create_task(ctx.wait_for_signal("more"))\n'
                f"{WAIT}    more.cancel()\n",
            ),
        ),
    ),
    # Failures
    Change("a kept handler", "caught", (("except StepFailed:", "except (StepFailed, KeyError):"),)),
    Change("more attempts", "caught", (("attempts=1", "attempts=5"),)),
    Change(
        "another handler",
        "caught",
        (
            ("except StepFailed:", "except KeyError:"),
            ("    await refuse(item)", "    await refuse(item)  # HERE"),
        ),
        "stuck",
        "stuck",
    ),
    Change(
        "another step in the handler",
        "caught",
        (("    place = await reserve(item)", "    place = await audit(item)  # HERE"),),
        "stuck",
        "stuck",
    ),
    # Types
    Change(
        "a new field with a default",
        "typed",
        (
            (
                "class Order(msgspec.Struct):\n    item: str\n",
                'class Order(msgspec.Struct):\n    item: str\n    note: str = ""\n',
            ),
        ),
    ),
    Change(
        "a field of a result with a default",
        "typed",
        (("    text: str\n", "    text: str\n    cents: int = 0\n"),),
    ),
    Change(
        "a new field of the input",
        "typed",
        (
            (
                "class Order(msgspec.Struct):\n    item: str\n",
                "class Order(msgspec.Struct):\n    item: str\n    note: str\n",
            ),
            (FLOW, FLOW.replace("flow\n", "flow  # HERE\n")),
        ),
        "stuck",
        "stuck",
    ),
    Change(
        "a new field of a result",
        "typed",
        (
            ("    text: str\n", "    text: str\n    cents: int\n"),
            ("= await bill(given)", "= await bill(given)  # HERE"),
        ),
        "stuck",
        "stuck",
    ),
    # Loops
    Change("one more turn of a loop", "loop", (("(1, 2)", "(1, 2, 3)"),), made=("pay lamp 3",)),
    Change(
        "no loop",
        "loop",
        (
            (
                '    for number in (1, 2):\n        made.append(await pay(f"{item} {number}"))\n',
                '    made = [await pay(f"{item} 1"), await pay(f"{item} 2")]\n',
            ),
        ),
    ),
    Change(
        "a turn less",
        "loop",
        (("(1, 2)", "(1,)"), (WAIT, WAIT[:-1] + "  # HERE\n")),
        "held",
        "stuck",
    ),
    Change(
        "a loop backwards",
        "loop",
        (("(1, 2)", "(2, 1)"), ('{number}"))', '{number}"))  # HERE')),
        "stuck",
        "stuck",
    ),
    # Equal calls, which are told apart by their number alone
    Change("one more equal call", "equal", (("(1, 2)", "(0, 1, 2)"),), made=("pay lamp",)),
    Change(
        "one equal call less",
        "equal",
        (("(1, 2)", "(2,)"), (WAIT, WAIT[:-1] + "  # HERE\n")),
        "held",
        "stuck",
    ),
    # Runs that have not begun
    Change(
        "a step in a new run",
        "new",
        ((PAY, f"    await audit(item)\n{PAY}"),),
        made=("audit lamp",),
    ),
    Change(
        "another workflow",
        "new",
        ((FLOW, '@app.workflow(name="buy")\nasync def order('),),
        "unserved",
        "queued",
    ),
    Change(
        "only a new version",
        "new",
        ((FLOW, "@app.workflow(version=2)\nasync def order("),),
        "unserved",
        "queued",
    ),
    Change(
        "a bug in a new run",
        "new",
        ((RESERVE, f"    prices[item]  # HERE\n{RESERVE}"),),
        "fails",
        "failed",
        missing=("reserve lamp", "pay lamp", "ship lamp"),
    ),
    Change(
        "an input that does not fit",
        "new",
        (
            ("ctx: Context, item: str)", "ctx: Context, item: int)"),
            (FLOW, FLOW.replace("flow\n", "flow  # HERE\n")),
        ),
        "fails",
        "failed",
        missing=("reserve lamp", "pay lamp", "ship lamp"),
    ),
)
