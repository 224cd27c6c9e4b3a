"""The app of these tests, and a caller of its server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from holdfast import App, Context

KEY = "the-key-of-the-tests"
HOST = "ops.test"

app = App("shop")


@app.workflow
async def checkout(ctx: Context, order: int) -> int:
    return order


class Api:
    """Asks a server in this process, as the holder of its key unless told otherwise."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a request, check the status of its answer, and return what it says."""
        content = None if body is None else {"json": body}
        answer = await self.http.request(method, path, headers=headers, **(content or {}))
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        if status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            problem = answer.json()
            assert problem["status"] == status
            assert {"type", "title", "detail"} <= problem.keys()
        return answer.json()

    async def start(self, input: object = 7, **fields: object) -> str:
        """Start a checkout and return its id."""
        path = "/v1/workflows/checkout/runs"
        answer = await self.ask("POST", path, {"input": input, **fields}, status=201)
        run_id: str = answer["run_id"]
        return run_id
