"""An expense that waits for a person: remind after a while, give up at the deadline.

    python examples/approval.py "train ticket" 89.90
    python examples/approval.py "train ticket" 89.90 --decide yes      # from another terminal

The first command waits. Kill it, start it again, decide before or after: the expense is the
same one, and the decision is not lost.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass
from decimal import Decimal
from uuid import uuid4

from holdfast import App, Context, local

app = App("expenses")

REMIND_AFTER = 5.0  # seconds here; days in life
GIVE_UP_AFTER = 120.0


@dataclass
class Expense:
    """What is to be paid."""

    what: str
    amount: Decimal


@dataclass
class Decision:
    """What the approver says."""

    approved: bool
    by: str


@app.step
async def tell(text: str) -> None:
    """Tell people; a mail or a chat message in life."""
    print(text, flush=True)


@app.step
async def pay(expense: Expense) -> str:
    """Pay, and return the booking's number."""
    return f"B-{uuid4().hex[:6].upper()}"  # drawn in a step: recorded, so it stays the same


@app.workflow
async def approve_expense(ctx: Context, expense: Expense) -> str:
    """Wait for a decision, remind every now and then, and pay if it is yes."""
    await tell(f"please decide: {expense.what}, {expense.amount}")

    async def remind() -> None:
        while True:
            await asyncio.sleep(REMIND_AFTER)
            await tell(f"still waiting for a decision on {expense.what}")

    reminding = asyncio.create_task(remind())
    try:
        decision = await ctx.wait_for_signal("decision", type=Decision, timeout=GIVE_UP_AFTER)
    except TimeoutError:
        return "nobody decided"
    finally:
        reminding.cancel()
    if not decision.approved:
        return f"refused by {decision.by}"
    return f"approved by {decision.by}, booked as {await pay(expense)}"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what")
    parser.add_argument("amount", type=Decimal)
    parser.add_argument("--decide", choices=["yes", "no"])
    parser.add_argument("--by", default="you")
    options = parser.parse_args()
    expense = Expense(options.what, options.amount)
    async with local(app) as client:
        handle = await client.start(
            approve_expense, expense, key=f"{options.what} {options.amount}"
        )
        if options.decide:
            decision = Decision(options.decide == "yes", options.by)
            await handle.signal("decision", decision)
        print(await handle.result())


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        raise SystemExit("stopped; the run continues once a worker is there again") from None
