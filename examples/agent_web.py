"""The agent of agent.py in a browser: its words as they come, and buttons for who decides.

    python examples/agent_web.py            # then open http://127.0.0.1:8000

Kill it with `kill -9` while the agent works, and start it again: the page connects again by itself
and shows each word once, and nothing is paid for or refunded twice.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from agent import Ticket, answer, app
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import HTMLResponse, StreamingResponse

from holdfast import Client, RunHandle, RunNotFound, local
from holdfast.types import Restarted

PAGE = """<!doctype html>
<meta charset="utf-8"><title>Support</title>
<form id="ask">
  <input name="text" value="my lamp is broken"> <input name="order" value="order-17">
  <input name="budget" type="number" value="1000"> tokens <button>Ask</button>
</form>
<p id="words"></p>
<p id="asked"></p>
<p id="state"></p>
<script>
const $ = (id) => document.getElementById(id);
let order, parts;  // [step, word]: what a step has written is forgotten when it begins again
const show = () => { $("words").textContent = parts.map((part) => part[1]).join(""); };
const decide = (approved) =>
  fetch(`tickets/${order}/decision?approved=${approved}`, { method: "POST" });

async function look() {
  const run = await (await fetch(`tickets/${order}`)).json();
  $("state").textContent = `${run.state} ${JSON.stringify(run.usage)}`;
  $("asked").replaceChildren(...run.asked.flatMap((text) => [
    text, ...["yes", "no"].map((word) => {
      const button = document.createElement("button");
      button.textContent = word;
      button.onclick = () => decide(word === "yes");
      return button;
    })]));
}

$("ask").onsubmit = async (event) => {
  event.preventDefault();
  const ticket = Object.fromEntries(new FormData(event.target));
  order = ticket.order;
  parts = [];
  const headers = { "Content-Type": "application/json" };
  await fetch("tickets", { method: "POST", headers, body: JSON.stringify(ticket) });
  const source = new EventSource(`tickets/${order}/live`);
  const timer = setInterval(() => look().catch(() => {}), 500);
  source.onmessage = (event) => { parts.push(JSON.parse(event.data)); show(); };
  source.addEventListener("restarted", (event) => {
    parts = parts.filter((part) => part[0] !== JSON.parse(event.data));
    show();
  });
  source.addEventListener("end", (event) => {
    source.close();
    clearInterval(timer);
    parts = [["", JSON.parse(event.data)]];  // with a small budget not what the agent has said
    show();
    look();
  });
};
</script>
"""


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    async with local(app) as client:  # with a worker; in production that is a process of its own
        web.state.client = client
        yield


def holdfast_client(request: Request) -> Client:
    client: Client = request.app.state.client
    return client


Holdfast = Annotated[Client, Depends(holdfast_client)]


async def find(order: str, client: Holdfast) -> RunHandle[str]:
    handle = client.handle((answer, order))
    try:
        await handle.get()
    except RunNotFound:
        raise HTTPException(404, f"nobody has asked about {order}") from None
    return handle


Found = Annotated[RunHandle[str], Depends(find)]
web = FastAPI(lifespan=lifespan)


@web.get("/", response_class=HTMLResponse)
async def page() -> str:
    return PAGE


@web.post("/tickets", status_code=202)
async def ask(ticket: Ticket, client: Holdfast) -> None:
    await client.start(answer, ticket, key=ticket.order)


@web.get("/tickets/{order}")
async def look(handle: Found) -> dict[str, object]:
    asked = [f"{each.title} {each.description}" for each in await handle.approvals()]
    usage = (await handle.values()).get("support.usage")
    return {"state": (await handle.get()).state, "asked": asked, "usage": usage}


@web.post("/tickets/{order}/decision", status_code=204)
async def decide(handle: Found, approved: bool, client: Holdfast) -> None:
    for each in await handle.approvals():
        await client.approvals.decide(each.run_id, each.key, approved, by="you")


@web.get("/tickets/{order}/live")
async def live(handle: Found, last_event_id: Annotated[int, Header()] = 0) -> StreamingResponse:
    """Send the words of the agent, after those that the browser has; then the result."""
    items = handle.stream_items("words", type=str, after=last_event_id, restarts=True)

    async def events() -> AsyncIterator[str]:
        async for each in items:
            if isinstance(each, Restarted):
                yield f"event: restarted\ndata: {json.dumps(each.key)}\n\n"
            else:
                yield f"id: {each.offset}\ndata: {json.dumps([each.key, each.value])}\n\n"
        run = await handle.get()
        yield f"event: end\ndata: {json.dumps(run.output or run.state)}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    uvicorn.run(web, port=parser.parse_args().port)
