"""The entities of the tests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from holdfast import App, Context, Retry, current_context, reads

app = App("carts")
charged: list[str] = []
checked: list[str] = []


@app.step
async def charge(key: str, cents: int) -> str:
    """Touch the world."""
    charged.append(key)
    return f"receipt-{key}-{cents}"


@app.entity
@dataclass
class Cart:
    """What a customer wants to buy."""

    key: str
    items: dict[str, int] = field(default_factory=dict)
    receipts: list[str] = field(default_factory=list)

    async def add(self, item: str, number: int = 1) -> int:
        """Add some of an item."""
        self.items[item] = self.items.get(item, 0) + number
        if number < 1:
            raise ValueError("at least one")
        return sum(self.items.values())

    async def add_slowly(self, item: str) -> int:
        """Add one of an item, a second later."""
        await asyncio.sleep(1)
        return await self.add(item)

    async def buy(self, cents: int) -> str:
        """Pay, and be patient."""
        receipt = await charge(self.key, cents)
        self.receipts.append(receipt)
        await asyncio.sleep(60)
        self.receipts.append(await charge(f"{self.key}-again", cents))
        return receipt

    async def stamp(self) -> str:
        """Give a step the time at which this call began."""
        ctx = current_context()
        assert ctx is not None
        self.receipts.append(await charge(ctx.now().isoformat(), 0))
        return self.receipts[-1]

    async def give(self, to: str, item: str) -> int:
        """Give an item to another cart."""
        ctx = current_context()
        assert ctx is not None
        self.items[item] -= 1
        return await ctx.entity(Cart, to).add(item)

    async def fail(self) -> None:
        """Change something after a step, and fail."""
        self.items["lost"] = len(await charge(self.key, 1))
        raise RuntimeError("no luck")

    async def remember(self, what: object) -> None:
        """Keep something that the class does not declare."""
        self.unknown = what

    async def misuse(self) -> None:
        """Keep what is not JSON."""
        self.items = {"lamp": object()}  # type: ignore[dict-item]

    @reads
    async def total(self) -> int:
        """Count what is in it."""
        return sum(self.items.values())

    @reads
    async def spoil(self) -> int:
        """Change the state in a read."""
        self.items["more"] = 1
        return 1

    @reads
    async def wait(self) -> None:
        """Wait in a read."""
        await asyncio.sleep(1)


@app.step(retry=Retry.NEVER)
async def fail_at_first(customer: str) -> None:
    """Fail the first time, after as many milliseconds as the customer's number."""
    checked.append(customer)
    await asyncio.sleep(int(customer) / 1000)
    if checked.count(customer) == 1:
        raise RuntimeError("in haste")


@app.workflow(retry=Retry(attempts=2, base="10ms"))
async def add_and_fail(ctx: Context, customer: str) -> int:
    """Fail at about the moment at which a call is sent."""
    cart = ctx.entity(Cart, customer)
    found, _ = await asyncio.gather(cart.add("lamp"), fail_at_first(customer))
    return found


@app.workflow
async def add_one(ctx: Context, customer: str) -> int:
    """Call an entity, and do nothing else."""
    return await ctx.entity(Cart, customer).add_slowly("lamp")


@app.entity
@dataclass
class Memo:
    """A state, answers and arguments that are null in JSON, as most are sooner or later."""

    key: str
    text: str | None = None

    async def write(self, text: str | None) -> None:
        """Keep a text."""
        self.text = text

    async def swap(self, text: str | None) -> dict[str, str | None]:
        """Keep a text, and return the one before it."""
        await asyncio.sleep(0.01)
        self.text, before = text, self.text
        return {"before": before}


@app.workflow
async def write_memos(ctx: Context, count: int) -> list[object]:
    """Call an entity again and again."""
    memo = ctx.entity(Memo, "m")
    found: list[object] = []
    for number in range(count):
        found += [await memo.write(None), await memo.swap(None if number % 2 else "null")]
    return found


@app.workflow
async def shop(ctx: Context, customer: str) -> list[object]:
    """Use an entity."""
    cart = ctx.entity(Cart, customer)
    found: list[object] = [await cart.add("lamp"), await cart.add("vase", number=2)]
    try:
        await cart.add("hole", -1)
    except Exception as error:
        found.append(type(error).__name__)
    found += await asyncio.gather(cart.total(), cart.buy(5))
    return found


@app.step(retry=Retry.NEVER)
async def check_stock(customer: str) -> None:
    """Fail the first time."""
    checked.append(customer)
    if len(checked) == 1:
        raise RuntimeError("in haste")


@app.workflow
async def hasty(ctx: Context, customer: str) -> int:
    """Fail while a call has no answer."""
    adding = asyncio.create_task(ctx.entity(Cart, customer).add_slowly("rug"))
    await ctx.sleep(0.3)
    await check_stock(customer)
    return await adding
