"""A support agent with tools, a person who approves refunds, and a budget of tokens.

    python examples/agent.py "my lamp is broken" order-17
    python examples/agent.py "my lamp is broken" order-17 --decide yes      # from another terminal

No key is needed: a function stands for the model. Kill it with `kill -9` at any moment, and
start it again: no recorded answer is paid for twice, and nothing is refunded twice.
`agent_web.py` shows this agent in a browser.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from pydantic_ai import Agent, Tool, UsageLimitExceeded, UsageLimits
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from holdfast import App, Context, current_step, local
from holdfast.agents.pydantic_ai import HoldfastDurability

app = App("support")

THINKING = 0.3  # seconds


@dataclass
class Ticket:
    """What a customer asks for, and how many tokens the answer may take."""

    text: str
    order: str
    budget: int


async def think(
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
    """Stand for a model: look at the order and the rules, refund, and say what came of it."""
    answered = [message for message in messages if isinstance(message, ModelResponse)]
    print(f"request {len(answered) + 1} to the model", flush=True)
    await asyncio.sleep(THINKING)
    told = [
        part.content
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    if not answered:
        order = str(messages[0].parts[-1].content).rpartition(" ")[2]
        look = DeltaToolCall("look_up", json.dumps({"order": order}))
        yield {0: look, 1: DeltaToolCall("read_rules", "{}")}
    elif len(answered) == 1:
        yield {0: DeltaToolCall("refund", json.dumps({"order": told[0].split()[0]}))}
    else:
        for word in re.findall(r"\S+\s*", f"I have looked: {told[-1]}."):
            yield word
            await asyncio.sleep(THINKING / 10)


async def look_up(order: str) -> str:
    """Find an order."""
    return f"{order} was delivered on Monday"


def read_rules() -> str:
    """Read what may be refunded."""
    return "refund within 30 days"


async def refund(order: str) -> str:
    """Refund an order. The payment service knows by the key what it has done already."""
    print(f"refund of {order}, key {current_step().idempotency_key}", flush=True)
    return f"{order} is refunded"


agent = Agent(
    FunctionModel(stream_function=think),
    name="support",
    instructions="Be kind. Refund what the rules allow.",
    tools=[look_up, read_rules, Tool(refund, requires_approval=True)],
    capabilities=[HoldfastDurability(approval_timeout="3d", stream="words")],
)


@app.workflow
async def answer(ctx: Context, ticket: Ticket) -> str:
    """Let the agent answer, within the budget."""
    limits = UsageLimits(total_tokens_limit=ticket.budget)
    try:
        result = await agent.run(f"{ticket.text}, {ticket.order}", usage_limits=limits)
    except UsageLimitExceeded:
        return f"The budget of {ticket.budget} tokens is spent: a person will answer."
    return result.output


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text")
    parser.add_argument("order")
    parser.add_argument("--budget", type=int, default=1_000)
    parser.add_argument("--decide", choices=["yes", "no"])
    options = parser.parse_args()
    ticket = Ticket(options.text, options.order, options.budget)
    async with local(app) as client:
        handle = await client.start(answer, ticket, key=options.order)
        if options.decide:
            while not (asked := await handle.approvals()):
                await asyncio.sleep(0.1)
            approved = options.decide == "yes"
            await client.approvals.decide(handle.run_id, asked[0].key, approved, by="you")
        else:
            print("a refund waits for your decision: --decide yes, in another terminal")
        print(await handle.result())
        print(await handle.values())


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        raise SystemExit("stopped; the run continues once a worker is there again") from None
