"""Agents with the real client of a provider, which answers over HTTP here."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import agents.run
import pytest
from pydantic_ai import Agent

from agents import Runner
from holdfast import App, Context
from holdfast.agents.openai import install
from holdfast.agents.pydantic_ai import HoldfastDurability
from holdfast.errors import RunFailed
from holdfast.testing import Environment

USAGE = {
    "input_tokens": 5,
    "output_tokens": 2,
    "total_tokens": 7,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}


def answer(text: str) -> dict[str, Any]:
    """Return what the provider answers, in its form."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
    return {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "m",
        "output": [{**message, "content": content}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": USAGE,
    }


class Provider:
    """A server that first answers with these statuses, and then as it should."""

    def __init__(self) -> None:
        self.refusals: list[int] = []
        self.requests = 0

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(int(handler.headers["content-length"]))
        self.requests += 1
        status = self.refusals.pop(0) if self.refusals else 200
        body = json.dumps(answer("hi there") if status == 200 else {"error": "no"}).encode()
        handler.send_response(status)
        handler.send_header("retry-after", "40")
        handler.send_header("x-should-retry", "false")  # else the client itself sleeps
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """A provider that the clients find by their environment."""
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            provider.respond(self)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    before = agents.run.get_default_agent_runner()
    yield provider
    agents.run.set_default_agent_runner(before)
    server.shutdown()
    server.server_close()
    thread.join()


def of_pydantic_ai() -> Callable[[str], Any]:
    importlib.import_module("pydantic_ai.models.openai")  # else while the workflow's code runs
    durable = HoldfastDurability()
    agent = Agent("openai-responses:gpt-5", name="support", capabilities=[durable])

    async def ask(question: str) -> str:
        return (await agent.run(question)).output

    return ask


def of_openai() -> Callable[[str], Any]:
    install()
    agent = agents.Agent("support", model="gpt-5")

    async def ask(question: str) -> str:
        return str((await Runner.run(agent, question)).final_output)

    return ask


@pytest.mark.parametrize("framework", [of_pydantic_ai, of_openai])
async def test_a_provider_that_is_busy_is_asked_again_when_it_says(
    provider: Provider, framework: Callable[[], Callable[[str], Any]]
) -> None:
    app, ask = App("shop"), framework()

    @app.workflow
    async def once(ctx: Context, question: str) -> str:
        return str(await ask(question))

    provider.refusals = [429, 503]
    async with Environment(app) as env:
        began = env.now
        handle = await env.client.start(once, "hello?")
        assert await env.result(handle) == "hi there"
        assert (env.now - began).total_seconds() >= 80
        used = {"requests": 1, "input_tokens": 5, "output_tokens": 2}
        assert await handle.values() == {"support.usage": used}
        assert provider.requests == 3
        provider.refusals = [401]
        with pytest.raises(RunFailed, match=r"step support\.model failed.*401"):
            await env.run(once, "hello?")
    assert provider.requests == 4


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("pydantic_ai", "pydantic_ai.durable_exec", "pydantic-ai"),
        ("openai", "agents.run", "openai-agents"),
        ("langchain", "langchain.agents.middleware", "langchain"),
    ],
)
def test_a_framework_that_is_missing_or_old_is_named(module: str, missing: str, extra: str) -> None:
    program = (
        f"import sys\nsys.modules[{missing!r}] = None\n"
        f"try:\n    import holdfast.agents.{module}\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith(f"ConfigurationError holdfast.agents.{module} needs "), done
    assert f"pip install --upgrade 'holdfast[{extra}]'" in done.stdout
