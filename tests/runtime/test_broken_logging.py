"""Filters and handlers of a program that raise: no run, no batch and no service stops of them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import App, Context, Retry, RunFailed
from holdfast.testing import Environment
from holdfast.values.loggers import get_logger

app = App("shop")


@app.step(retry=Retry.NEVER)
async def refuse() -> None:
    """Fail."""
    raise ValueError("no")


@app.activity(retry=Retry.NEVER)
async def decline() -> None:
    """Fail."""
    raise ValueError("no")


@app.workflow
async def by_step(ctx: Context) -> None:
    """Write a line, and fail."""
    ctx.log.warning("begins")
    await refuse()


@app.workflow
async def by_activity(ctx: Context) -> None:
    """Fail."""
    await decline()


class Broken(logging.Handler):
    """Raises where `logging` does not catch it, as a handler or as its filter."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Raise."""
        raise KeyError("request_id")


@pytest.fixture(autouse=True)
def broken() -> Iterator[None]:
    """Add such a handler."""
    handler, logger = Broken(), logging.getLogger("holdfast")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


@pytest.mark.parametrize("workflow", [by_step, by_activity])
async def test_runs_end_although_no_line_can_be_written(
    workflow: holdfast.Workflow[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    async with Environment(app) as env:
        with pytest.raises(RunFailed, match="ValueError: no"):
            async with asyncio.timeout(60):
                await env.client.run(workflow)
    assert "KeyError: 'request_id'" in capsys.readouterr().err


def test_what_is_raised_is_not_shown_if_the_program_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    get_logger("holdfast.worker").warning("a line")
    assert capsys.readouterr().err == ""


def test_all_loggers_of_the_package_are_made_so() -> None:
    files = Path(holdfast.__file__).parent.rglob("*.py")
    made = re.compile(r'logging\.getLogger\(f?"holdfast\.')
    assert [file.name for file in files if made.search(file.read_text("utf-8"))] == []
