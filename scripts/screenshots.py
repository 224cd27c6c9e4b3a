"""Make the pictures of the dashboard in docs/images: real pages, of real runs, in Chromium.

.venv/bin/python scripts/screenshots.py
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from playwright.async_api import Browser, async_playwright

from holdfast import App, Context, Retry, local
from holdfast.client import Client
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.server.running import bind, running_beside

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
LARGEST = 150_000  # bytes
KEY = "pictures"

app = App("shop")


@dataclass
class Order:
    """What a customer wants."""

    number: int
    items: list[str] = field(default_factory=list[str])
    size: Literal["small", "large"] = "small"
    express: bool = False


@dataclass
class Refund:
    """What goes back to a customer."""

    amount: float
    reason: Literal["damaged", "late", "other"] = "damaged"


@dataclass
class Site:
    """A site to look at."""

    url: str


@app.step
async def reserve(order: Order) -> str:
    """Reserve the items of an order."""
    await asyncio.sleep(0.2)
    return f"{len(order.items)} items"


@app.step
async def charge(order: Order) -> str:
    """Take the money."""
    await asyncio.sleep(0.4)
    return f"receipt-{order.number}"


@app.step
async def pack(item: str) -> str:
    """Put an item into a parcel."""
    await asyncio.sleep(0.15 + len(item) / 20)
    return f"parcel with a {item}"


@app.workflow
async def checkout(ctx: Context, order: Order) -> list[str]:
    """Charge and pack an order, and wait for the courier."""
    await reserve(order)
    await charge(order)
    parcels = await asyncio.gather(*(pack(item) for item in order.items))
    await ctx.wait_for_signal("picked-up", timeout="1d")
    return parcels


@app.workflow
async def refund(ctx: Context, order: Order) -> str:
    """Ask a person whether money goes back."""
    decision = await ctx.request_approval(
        f"Refund order {order.number}?",
        description="The lamp arrived broken.",
        form=Refund,
        timeout="1d",
    )
    return "paid back" if decision.approved else "refused"


@app.step(retry=Retry(attempts=2, base="200ms"))
async def draw(label: str) -> str:
    """Draw a label."""
    raise ValueError(f"no such font: {label}")


@app.workflow
async def label(ctx: Context, font: str) -> str:
    """Print a label, or fail."""
    return await draw(font)


analyze = app.flow("analyze", input=Site)


@analyze.step
async def page(run: Site) -> str:
    """Fetch the page."""
    await asyncio.sleep(0.3)
    return f"all about {run.url}"


@analyze.step
async def sentiment(page: str) -> float:
    """Judge it."""
    await asyncio.sleep(0.5)
    return 0.8


@analyze.step
async def links(page: str) -> list[str]:
    """Find its links."""
    return [f"/{number}" for number in range(40)]


@analyze.map(links)
async def fetch(link: str) -> int:
    """Fetch a link."""
    await asyncio.sleep(0.2)
    return len(link)


@analyze.step
async def report(run: Site, sentiment: float, fetch: list[int]) -> str:
    """Write it up."""
    return f"{run.url}: {sentiment}, {sum(fetch)} characters"


async def main() -> None:
    programs = ("chromium", "chromium-browser", "chromium-headless-shell")
    chromium = next(filter(None, map(shutil.which, programs)), None)
    if chromium is None:
        sys.exit("there is no Chromium: apt-get install chromium")
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        async with local(app, data=scratch, grace="1s") as client, async_playwright() as playwright:
            paths = await make_runs(client)
            bound = bind("127.0.0.1", 0)
            site = f"http://127.0.0.1:{bound.getsockname()[1]}"
            server = Server(f"{client_url(scratch)}", auth=KeyAccess(KEY), app=app)
            async with running_beside(server, bound, grace_seconds=1):
                arguments = ["--no-sandbox"]
                browser = await playwright.chromium.launch(executable_path=chromium, args=arguments)
                for name, (path, scheme) in paths.items():
                    await take(browser, site, name, path, scheme)
                await browser.close()


def client_url(scratch: str) -> str:
    """Return the URL of the embedded database in a folder."""
    return f"postgresql://holdfast@/holdfast?host={scratch}/postgres&port=5432"


async def make_runs(client: Client) -> dict[str, tuple[str, Literal["light", "dark"]]]:
    """Start runs of each kind; return which pages are shown."""
    order = Order(1042, ["lamp", "chair", "clock", "kettle"])
    for number in range(1037, 1042):
        done = await client.start(checkout, Order(number, ["lamp"]), key=f"order-{number}")
        await done.signal("picked-up")
        await client.runs.wait(done.run_id)
    failed = await client.start(label, "Fraktur", key="label-9")
    flow = await client.start(analyze, Site("example.org"), key="example.org")
    waiting = await client.start(checkout, order, key="order-1042", tags=["vip"])
    asking = await client.start(refund, order, key="refund-1042")
    await client.runs.wait(failed.run_id)
    await client.runs.wait(flow.run_id)
    for handle in (waiting, asking):
        while (await handle.get()).state != "waiting":
            await asyncio.sleep(0.05)
    return {
        "dashboard-runs": ("/runs", "light"),
        "dashboard-run": (f"/runs/{waiting.run_id}", "light"),
        "dashboard-flow": (f"/runs/{flow.run_id}", "dark"),
        "dashboard-approvals": ("/approvals", "light"),
        "dashboard-start": ("/workflow?name=shop/checkout", "light"),
    }


async def take(
    browser: Browser, site: str, name: str, path: str, scheme: Literal["light", "dark"]
) -> None:
    """Take one picture."""
    context = await browser.new_context(
        viewport={"width": 1200, "height": 700}, color_scheme=scheme, reduced_motion="reduce"
    )
    tab = await context.new_page()
    await tab.goto(f"{site}/login?key={KEY}")
    await tab.goto(site + path)
    if await tab.locator("#live").count():
        await tab.locator("#live.on").wait_for()
    target = IMAGES / f"{name}.png"
    await tab.screenshot(path=target)
    await context.close()
    size = target.stat().st_size
    if size > LARGEST:
        sys.exit(f"{target} has {size:,} bytes, more than {LARGEST:,}")
    print(f"{target.name}: {size:,} bytes")


if __name__ == "__main__":
    asyncio.run(main())
