"""What runs without an event loop of asyncio, as the coroutines of Trio do, says what it needs."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from holdfast import App, Client, Context, local
from holdfast.errors import ConfigurationError
from holdfast.testing import Environment

app = App("elsewhere")


@app.workflow
async def unused(ctx: Context) -> None: ...


@pytest.mark.parametrize(
    "begin",
    [Client("postgresql:///no").open(), local(app).__aenter__(), Environment(app).__aenter__()],
    ids=["client", "local", "environment"],
)
def test_it_needs_asyncio(begin: Coroutine[Any, Any, object]) -> None:
    with pytest.raises(ConfigurationError, match="needs asyncio"):
        begin.send(None)
