"""A worker process that runs agents of all frameworks, to be killed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from agents import Agent, Runner
from holdfast import App, Context
from holdfast.agents.openai import install
from tests.agents import test_langchain, test_openai, test_pydantic_ai
from tests.agents.prefixes import LEDGER
from tests.crash.worker import Pace, serve

app = App("agents")
of_pydantic_ai = test_pydantic_ai.support()
of_langchain = test_langchain.support()
of_openai: Agent[Any] = test_openai.support()

FRAMEWORKS = ("pydantic_ai", "openai", "langchain")


@app.workflow
async def pydantic_ai(ctx: Context, question: str) -> str:
    return (await of_pydantic_ai.run(question)).output


@app.workflow
async def openai(ctx: Context, question: str) -> str:
    return str((await Runner.run(of_openai, question)).final_output)


@app.workflow
async def langchain(ctx: Context, question: str) -> str:
    result = await of_langchain.ainvoke({"messages": [("user", question)]})
    return str(result["messages"][-1].text)


def work(url: str, ledger: Path) -> None:
    """Be a worker until it is killed."""
    os.environ[LEDGER] = str(ledger)
    with ledger.with_name("workers.log").open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    install()
    asyncio.run(serve(url, app, pace=Pace(4.0, 0.5, 3.0)))
