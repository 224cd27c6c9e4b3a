"""The app of these tests, and a caller of its server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from holdfast import App, Context, Retry, current_activity

KEY = "the-key-of-the-tests"
HOST = "ops.test"

app = App("shop")


@app.workflow
async def checkout(ctx: Context, order: int) -> int:
    return order


@app.workflow
async def countdown(ctx: Context, left: int) -> str:
    if left:
        ctx.continue_as_new(left - 1)
    return "done"


@app.workflow
async def impatient(ctx: Context, timeout: str) -> str:
    try:
        await ctx.request_approval("Soon?", timeout=timeout)
    except TimeoutError:
        await ctx.wait_for_signal("go")
        return "not in time"
    return "in time"


@dataclass
class Terms:
    discount: float
    reason: Literal["volume", "loyalty"] = "volume"


@app.step(retry=Retry(attempts=2, base=0.01))
async def charge(amount: int) -> dict[str, int]:
    if amount < 0:
        raise ValueError("a negative amount")
    return {"paid": amount}


@app.activity(retry=Retry.NEVER, start_to_close="1h")
async def proofread(text: str) -> str:
    activity = current_activity()
    tokens[text] = activity.token
    activity.complete_later()


@app.workflow
async def desk(ctx: Context, amount: int) -> str:
    """Charge, ask for an approval, then for a proof reader, and listen to updates."""

    def rename(name: str) -> str:
        if not name:
            raise ValueError("a name has letters")
        ctx.set_value("name", name)
        return name.title()

    ctx.handle_update("rename", rename)
    await charge(amount)
    decision = await ctx.request_approval("Refund?", form=Terms, timeout="1h")
    if not decision.approved:
        return f"refused by {decision.by}"
    child = await ctx.start_child(checkout, amount)
    read = await proofread(f"text {amount}")
    return f"{await child.result()} {read}"


hooks: list[str] = []  # the URLs that runs have given away


@app.step
async def give(url: str) -> None:
    hooks.append(url)


@app.workflow
async def paid(ctx: Context, scheme: Literal["standard", "stripe", "github"] | None) -> object:
    """Wait for a POST, with a signature if there is a scheme."""
    hook = ctx.webhook("paid")
    if scheme is not None:
        hook = ctx.webhook("paid", secret="SHOP_HOOKS", scheme=scheme)
    await give(hook.url)
    return await hook.received()


analyze = app.flow("analyze", input=str)


@analyze.step
async def words(run: str) -> list[str]:
    return run.split()


@analyze.map(words, attempts=1)
async def size(word: str) -> int:
    if word == "?":
        raise ValueError("it is not a word")
    return len(word)


tokens: dict[str, str] = {}  # of the activity, by its text


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
