"""The example of an agent in a browser, in memory: words, a decision, a budget."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.testing import Environment

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `agent_web`, as its reader runs it."""
    monkeypatch.syspath_prepend(EXAMPLES)
    before = dict(sys.modules)
    import agent_web  # type: ignore[import-not-found]  # of the examples

    yield agent_web
    for name in sys.modules.keys() - before.keys():
        if str(EXAMPLES) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
async def browser(example: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Environment]]:
    """A browser, and the environment in which the agent works."""
    async with Environment(example.app) as env:
        example.web.state.client = env.client
        transport = httpx.ASGITransport(example.web)
        async with httpx.AsyncClient(transport=transport, base_url="http://web") as client:
            yield client, env


def events(text: str) -> list[tuple[str, Any]]:
    """Return the events of a stream: the id or the kind of each, and its data."""
    found: list[tuple[str, Any]] = []
    for block in text.strip().split("\n\n"):
        about, data = block.split("\n")
        found.append((about.partition(": ")[2], json.loads(data.removeprefix("data: "))))
    return found


async def test_the_words_of_the_agent_reach_the_browser_once_a_person_has_decided(
    browser: tuple[httpx.AsyncClient, Environment],
) -> None:
    client, env = browser
    assert "EventSource" in (await client.get("/")).text
    for path in ("/tickets/order-17", "/tickets/order-17/live"):
        assert (await client.get(path)).status_code == 404
    ticket = {"text": "my lamp is broken", "order": "order-17", "budget": 1000}
    assert (await client.post("/tickets", json=ticket)).status_code == 202
    await env.wait_until_idle()
    asked = (await client.get("/tickets/order-17")).json()
    assert asked["state"] == "waiting"
    assert asked["asked"] == ['support: refund {"order":"order-17"}']
    decided = await client.post("/tickets/order-17/decision", params={"approved": True})
    assert decided.status_code == 204
    await env.result(env.client.handle(("support/answer", "order-17")))
    *words, end = events((await client.get("/tickets/order-17/live")).text)
    said = "I have looked: order-17 is refunded."
    assert "".join(word for _, (_, word) in words) == said
    assert end == ("end", said)
    third = {"Last-Event-ID": words[2][0]}
    rest = events((await client.get("/tickets/order-17/live", headers=third)).text)
    assert rest == [*words[3:], end]
    seen = (await client.get("/tickets/order-17")).json()
    assert (seen["state"], seen["asked"], seen["usage"]["requests"]) == ("completed", [], 3)


async def test_an_agent_whose_tokens_are_spent_says_so(
    browser: tuple[httpx.AsyncClient, Environment],
) -> None:
    client, env = browser
    ticket = {"text": "my cup is broken", "order": "order-18", "budget": 20}
    await client.post("/tickets", json=ticket)
    await env.result(env.client.handle(("support/answer", "order-18")))
    [end] = events((await client.get("/tickets/order-18/live")).text)
    assert end == ("end", "The budget of 20 tokens is spent: a person will answer.")
