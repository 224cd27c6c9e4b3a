"""The dashboard in a real browser: how pages look, what clicks do, and that they stay current."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from holdfast.client import Client
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.server.pages.strips import WINDOW
from holdfast.server.running import bind, running_beside
from holdfast.store.postgres import PostgresStore
from holdfast.types import MinuteCounts
from holdfast.types.stats import BUCKETS, COUNTS, ENDED
from holdfast.worker import Worker, WorkerOptions
from tests.browsers import needs_chromium, opened_chromium
from tests.server.desk import (
    Order,
    Site,
    analyze,
    app,
    checkout,
    count,
    listen,
    refund,
    render,
    ship,
    talk,
    weigh,
)
from tests.server.shop import KEY

T = TypeVar("T")

PATIENCE_MS = 60_000
HOSTILE = "<script>alert(1)</script>\"onload='x'"

pytestmark = [
    needs_chromium,
    pytest.mark.timeout(600),  # a browser on a machine with other work to do
]
expect.set_options(timeout=PATIENCE_MS)


class Desk:
    """A server with a worker, on a loop in a thread of its own: the browser has this one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._stack = AsyncExitStack()
        self.client: Client
        self.site = ""

    def __enter__(self) -> Desk:
        self._thread.start()
        self(self._open)
        return self

    def __exit__(self, *_: object) -> None:
        self(self._stack.aclose)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __call__(
        self, work: Callable[..., Coroutine[Any, Any, T]], *given: object, **named: Any
    ) -> T:
        """Run something on the server's loop, and return what comes of it."""
        return asyncio.run_coroutine_threadsafe(work(*given, **named), self._loop).result(120)

    def start(self, workflow: object, input: object, **options: Any) -> str:
        """Start a run and return its id."""
        return str(self(self.client.start, workflow, input, **options).run_id)

    async def count(self, name: str, **ended: int) -> None:
        """Write how many runs of a workflow ended this minute, each within a second."""
        counts = [0] * COUNTS
        for status, number in ended.items():
            counts[ENDED[status]] = number
        counts[BUCKETS + 4] = sum(ended.values())
        row = MinuteCounts(await self.store.now(), name, tuple(counts))
        await self.store.heartbeat(self.worker.info, [], lease_seconds=30, stats=[row])

    def await_state(self, run: str, state: str) -> None:
        async def wait() -> None:
            async with asyncio.timeout(60):
                while (await self.client.runs.get(run)).state != state:
                    await asyncio.sleep(0.02)

        self(wait)

    async def _open(self) -> None:
        self.store = store = PostgresStore(self._url)
        await store.open()
        self._stack.push_async_callback(store.close)
        self.worker = worker = Worker(app, store, WorkerOptions(run_logs=True))
        await worker.start()
        self._stack.push_async_callback(worker.stop)
        self.client = await self._stack.enter_async_context(Client(store=store, app=app))
        server = await self._stack.enter_async_context(
            Server(store=store, auth=KeyAccess(KEY), app=app, stream_seconds=300)
        )
        bound = bind("127.0.0.1", 0)
        self.site = f"http://127.0.0.1:{bound.getsockname()[1]}"
        await self._stack.enter_async_context(running_beside(server, bound, grace_seconds=1))


@pytest.fixture(scope="module")
def desk(module_database_url: str) -> Iterator[Desk]:
    with Desk(module_database_url) as opened:
        yield opened


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with opened_chromium() as browser:
        yield browser


class Reader:
    """A person with a browser. What the browser complains about is kept."""

    def __init__(self, desk: Desk, context: BrowserContext) -> None:
        self.desk, self.complaints = desk, list[str]()
        context.set_default_timeout(PATIENCE_MS)
        self.page: Page = context.new_page()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(f"{desk.site}/login?key={KEY}")

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{self.page.url}: {message.text}")

    def go(self, path: str) -> Page:
        self.page.goto(self.desk.site + path)
        return self.page


@pytest.fixture
def reader(desk: Desk, chromium: Browser) -> Iterator[Reader]:
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    found = Reader(desk, context)
    yield found
    context.close()
    assert found.complaints == []


async def _furnish(client: Client) -> None:
    """Make what the pages of schedules and queues show, once for the desk."""
    if not await client.queues.create("mail", max_receives=1):
        return
    await client.schedules.create("nightly", checkout, "0 3 * * *", input=HOSTILE)
    await client.queues.send("mail", HOSTILE)
    for message in await client.queues.receive("mail"):
        await client.queues.nack(message, error="no such mailbox")
    url = "http://127.0.0.1:9/" + "p" * 200  # nothing answers
    await client.topics.subscribe("parcels.#", url=url, secret="s" * 32, allow_inner=True)
    await client.topics.publish("parcels.lost", HOSTILE)


# Returns what reaches out of the window: neither in a box that scrolls nor cut with dots.
OUTSIDE = """() => {
  const scrolls = (each) => ["auto", "scroll"].includes(getComputedStyle(each).overflowX);
  const right = (each) => each.getBoundingClientRect().right;
  const inside = (each) => {
    for (let up = each; up && up.id !== "main"; up = up.parentElement) {
      if (scrolls(up) && right(up) <= innerWidth + 1) return true;
      if (up !== each && getComputedStyle(up).textOverflow === "ellipsis") return true;
      if (up.matches(".unseen, [hidden]") || up.parentElement.closest("svg")) return true;
    }
    return false;
  };
  const isOut = (box) => box.width && box.height && (box.right > innerWidth + 1 || box.left < -1);
  return [...document.querySelectorAll("#main *")]
    .filter((each) => each.checkVisibility())
    .filter((each) => isOut(each.getBoundingClientRect()) && !inside(each))
    .map((each) => `${each.outerHTML.slice(0, 90)}: ${right(each)}`)
    .slice(0, 5);
}"""


def open_all(page: Page) -> list[str]:
    """Open each fold of a page, one menu after the other; return what reaches out of the window."""
    page.evaluate("document.querySelectorAll('details:not(.menu)').forEach(a => { a.open = true })")
    window = page.locator("[data-window]").first
    if page.locator("[data-window]").count():
        window.evaluate("each => each.scrollIntoView()")
        expect(window.locator(".strip").first).to_be_visible()
        page.evaluate(
            "document.querySelectorAll('.window details').forEach(a => { a.open = true })"
        )
    found: list[str] = page.evaluate(OUTSIDE)
    for number in range(page.locator("details.menu").count()):
        page.evaluate(
            """number => document.querySelectorAll("details.menu").forEach(
                (each, place) => { each.open = place === number })""",
            number,
        )
        found += page.evaluate(OUTSIDE)
    page.evaluate("document.querySelectorAll('details.menu').forEach(a => { a.open = false })")
    return found


def violations(page: Page, **options: Any) -> list[Any]:
    """Return what axe finds."""
    options["resultTypes"] = ["violations"]  # the rest is not told node by node
    found = Axe().run(page, options=options).response["violations"]
    return [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found]


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 360, 800])
def test_each_page_is_readable_for_all(desk: Desk, chromium: Browser, width: int) -> None:
    """No report of the content policy, nothing wider than the screen, and axe finds nothing.

    On a phone axe looks at a page of each kind: most of what it looks at is the same at each width.
    Nothing but colours depends on the scheme.
    """
    waiting = desk.start(ship, Order(1, ["lamp", "chair"]), key=f"order-{width}")
    asking = desk.start(refund, Order(2), key=f"refund-{width}")
    failed = desk.start(render, HOSTILE, key=f"{HOSTILE}-{width}")
    flow = desk.start(analyze, Site("example.org"), key=f"site-{width}")
    desk(desk.client.runs.wait, failed)
    desk(desk.client.runs.wait, flow)
    spoken = desk.start(talk, [HOSTILE, "x" * 300], key=f"talk-{width}")
    for each in (waiting, asking, spoken):
        desk.await_state(each, "waiting")
    desk(_furnish, desk.client)
    many = desk.start(count, WINDOW + 5, key=f"count-{width}")
    desk(desk.client.runs.wait, many)
    paths = ["/", "/runs", "/runs?state=failed", "/approvals", "/workflows", "/schedules"]
    paths += [
        "/workflow?name=desk/ship",
        "/schedule?name=desk/nightly",
        "/queues",
        "/workers",
        "/messages",
        "/message-queue?name=mail",
    ]
    paths += ["/doctor", f"/runs/{waiting}", f"/runs/{asking}", f"/runs/{failed}", f"/runs/{flow}"]
    paths += [f"/runs/{failed}?tab={tab}" for tab in ("log", "data")]
    paths += [f"/runs/{spoken}?tab={tab}" for tab in ("streams", "lines")]
    paths += [f"/runs/{many}", f"/runs/{waiting}/fork", "/bulk?do=cancel&state=waiting"]
    paths += [f"/bulk?do=cancel&run={waiting},{asking},{failed}", "/runs/x", "/login"]
    kinds = {"/", "/approvals", "/workflow?name=desk/ship", "/login"}
    kinds |= {f"/runs/{waiting}", f"/runs/{failed}?tab=log"}
    context = chromium.new_context(
        viewport={"width": width, "height": 800}, reduced_motion="reduce"
    )
    person = Reader(desk, context)
    for path in paths:
        page = person.go(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert open_all(page) == [], path
        if width == 1280 or (width == 360 and path in kinds):
            assert violations(page) == [], path
            page.emulate_media(color_scheme="dark")
            assert violations(page, runOnly=["color-contrast"]) == [], path
            page.emulate_media(color_scheme="light")
    context.close()
    told = [each for each in person.complaints if "/runs/x" not in each]
    assert told == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_button_can_be_read_in_each_of_its_states(
    desk: Desk, chromium: Browser, scheme: Any
) -> None:
    run = desk.start(ship, Order(1), key=f"button-{scheme}")
    desk.await_state(run, "waiting")
    context = chromium.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 800})
    page = Reader(desk, context).go(f"/runs/{run}")
    button = page.locator("#why summary.main")
    only = {"runOnly": ["color-contrast"]}

    def unreadable() -> list[Any]:
        found = Axe().run(page, context="#why summary.main", options=only).response
        assert found["passes"], found["incomplete"]
        violations: list[Any] = found["violations"]
        return violations

    assert unreadable() == []
    button.hover()
    assert unreadable() == []
    button.click()
    assert unreadable() == []
    page.mouse.move(0, 0)
    assert unreadable() == []
    context.close()


def test_a_page_shows_what_happens_without_being_loaded_again(desk: Desk, reader: Reader) -> None:
    run = desk.start(ship, Order(3, ["lamp"]), key="live")
    page = reader.go(f"/runs/{run}")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#why")).to_contain_text("picked-up")
    page.evaluate("window.same = true")
    page.get_by_text("Send signal picked-up").click()
    field = page.locator("#why textarea")
    field.fill('{"typed": 1}')
    desk(desk.client.handle(run).signal, "other", 1)  # the log grows while a person types
    expect(page.locator("#body")).to_contain_text("other")
    expect(field).to_have_value('{"typed": 1}')
    page.get_by_role("button", name="Send picked-up").click()
    expect(page.get_by_text("The signal was sent.")).to_be_visible()
    assert "done=" not in page.url  # a reload does not say it again
    expect(page.locator("#head")).to_contain_text("completed")
    assert desk(desk.client.runs.get, run).output == ["parcel with lamp"]
    page = reader.go("/runs?state=queued&workflow=desk/checkout")
    assert page.evaluate("window.same") is None


def test_streams_and_log_lines_of_a_run_are_shown_as_they_come(desk: Desk, reader: Reader) -> None:
    run = desk.start(talk, [HOSTILE, " and so on"])
    desk.await_state(run, "waiting")
    page = reader.go(f"/runs/{run}")
    page.get_by_role("link", name="Streams").click()
    shown = page.get_by_label("Values of words")
    expect(shown).to_have_text(f"{HOSTILE} and so on")
    desk(desk.client.signal, run, "say", ", to the end")
    expect(shown).to_have_text(f"{HOSTILE} and so on, to the end")
    page.get_by_role("link", name="Log lines").click()
    rows = page.get_by_role("region", name="Lines that the code logged").get_by_role("row")
    expect(rows).to_have_count(5)  # the head is one
    expect(rows.nth(1)).to_contain_text(f"said {HOSTILE}")
    page.get_by_role("link", name="warning and higher").click()
    expect(rows).to_have_count(4)
    rows.nth(3).get_by_role("link", name="tell#2").click()
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("said , to the end")


@pytest.mark.parametrize("asks", ["already", "again", "first"])
def test_edge_39_a_page_says_that_its_run_was_deleted(
    desk: Desk, reader: Reader, asks: str
) -> None:
    """Edge case 39. It keeps what it showed, and offers nothing.

    The run is deleted while the page follows it, before it asks again, or before it asks first.
    """
    run = desk.start(ship, Order(3, ["lamp"]), retention="1ms")
    desk.await_state(run, "waiting")
    stream, held = re.compile(r"live=1"), list[Route]()

    def hold(route: Route) -> None:
        if asks == "first":
            held.append(route)
        else:
            route.fulfill(content_type="text/event-stream", body="retry: 100\n\n")

    if asks != "already":
        reader.page.route(stream, hold)
    with reader.page.expect_request(stream):
        page = reader.go(f"/runs/{run}")
    expect(page.locator("#why")).to_contain_text("picked-up")
    expect(page.locator("#gone")).to_be_hidden()
    if asks == "already":
        expect(page.locator("#live")).to_have_text("live")
    desk(desk.client.runs.terminate, run)

    async def deleted() -> None:
        while not await desk.client.retention.sweep():
            await asyncio.sleep(0.02)

    desk(deleted)
    for each in held:
        each.continue_()
    page.unroute(stream)
    expect(page.locator("#live")).to_have_text("deleted")
    expect(page.locator("#gone")).to_be_visible()
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator("#stream")).to_have_count(0)
    expect(page.locator("main form[method=post] button:enabled")).to_have_count(0)
    said = [each for each in reader.complaints if not each.startswith(desk.site)]
    reader.complaints.clear()  # the browser says that the run was not found
    assert said == []  # by scripts that failed


def test_new_runs_wait_behind_a_bar_and_states_change_in_place(desk: Desk, reader: Reader) -> None:
    run = desk.start(ship, Order(4), key="bar-4")
    desk.await_state(run, "waiting")
    page = reader.go("/runs?workflow=desk/ship")
    row = page.locator(f"#r-{run.replace('-', '')}")
    expect(row).to_contain_text("waiting")
    expect(page.locator("#live")).to_have_text("live")
    desk.start(ship, Order(5), key="bar-5")
    bar = page.get_by_role("link", name=re.compile("1 new run"))
    expect(bar).to_be_visible()
    assert page.get_by_text("bar-5").count() == 0
    desk(desk.client.handle(run).signal, "picked-up")
    expect(row).to_contain_text("completed")
    bar.click()
    expect(page.get_by_text("bar-5")).to_be_visible()


def test_statistics_are_drawn_and_said_in_words(desk: Desk, reader: Reader) -> None:
    desk.start(weigh, "a letter")  # no other test ends runs of it
    desk(desk.count, "desk/weigh", completed=30, failed=10)
    row = reader.go("/workflows").get_by_role("row").filter(has_text="desk/weigh")
    drawn = row.get_by_role("img", name="40 ended in the last hour, at most 40 in a minute")
    expect(drawn).to_be_visible()
    heights = drawn.locator("rect:not(.track)").evaluate_all(
        "all => all.map(a => a.getBBox().height)"
    )
    assert heights == [20, 5]
    expect(row).to_contain_text("25.0 %")
    expect(row).to_contain_text("≈ ")
    expect(reader.page.get_by_text("approximate")).to_be_visible()
    page = reader.go("/")
    expect(page.get_by_role("heading", name="The last hour")).to_be_visible()
    expect(page.get_by_text("desk/weigh: 10 of 40 runs")).to_be_visible()
    page = reader.go("/workflow?name=desk/weigh")
    expect(page.locator("#charts .facts")).to_contain_text(["25.0 % failed"])
    bars = page.locator("#charts rect.c-ended, #charts rect.c-failed")
    assert bars.evaluate_all("all => all.map(a => a.getBBox().height)") == [120, 30]
    page.get_by_role("link", name="24h").click()
    expect(page.locator("#charts [aria-current]")).to_have_text("24h")
    page.get_by_text("Numbers", exact=True).click()
    expect(page.get_by_role("region", name="Numbers of the charts")).to_contain_text("40")


@pytest.mark.parametrize("width", [1280, 800, 360])
def test_backlog_and_load_are_drawn_in_line_with_the_other_charts(
    desk: Desk, reader: Reader, width: int
) -> None:
    desk.start(weigh, "a parcel")
    desk(desk.store.sample_load)
    reader.page.set_viewport_size({"width": width, "height": 800})
    page = reader.go("/?span=24h")
    charts = page.locator(".chart")
    expect(charts.filter(has_text="Load of the workers").locator("polyline").first).to_be_attached()
    expect(charts.filter(has_text="Load of the workers")).to_contain_text("places")
    expect(charts.filter(has_text="Backlog: tasks that wait for a worker")).to_be_visible()
    places = page.locator(".chart .plot, .chart .none").evaluate_all(
        "all => all.map(a => a.getBoundingClientRect()).map(a => [a.left, a.right])"
    )
    assert len(places) == 4
    assert all(left >= 0 and right <= width for left, right in places)
    assert len({(left, right) for left, right in places}) == (2 if width > 1000 else 1)
    page.get_by_text("Numbers", exact=True).click()
    expect(page.get_by_role("region", name="Numbers of backlog and load")).to_be_visible()


NARROW = [
    "/doctor",
    "/queues",
    "/workflows",
    "/workers",
    "/schedules",
    "/messages",
    "/message-queue?name=mail",
]


@pytest.mark.parametrize("path", NARROW)
def test_tables_are_read_in_a_narrow_window_without_moving_them(
    desk: Desk, reader: Reader, path: str
) -> None:
    """Cells were cut at the window, or had a letter a line."""
    desk(_furnish, desk.client)
    reader.page.set_viewport_size({"width": 360, "height": 800})
    page = reader.go(path)
    tables = page.locator("table.cards")
    expect(tables.first).to_be_visible()
    assert page.locator("table:not(.cards)").count() == 0
    wide = (
        "all => all.filter(a => a.parentElement.scrollWidth > a.parentElement.clientWidth).length"
    )
    assert tables.evaluate_all(wide) == 0


def test_a_run_is_started_failed_forked_and_ended_by_clicks(desk: Desk, reader: Reader) -> None:
    page = reader.go("/workflows")
    page.get_by_role("link", name="desk/render", exact=True).click()
    page.get_by_label("Input, as JSON").fill('"Fraktur"')
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#head")).to_contain_text("failed")
    expect(page.locator("#why")).to_contain_text("no such font: Fraktur")
    page.locator("summary", has_text="draw").click()
    page.get_by_role("link", name="Fork from here").click()
    expect(page.get_by_label("From the step")).to_have_value("draw")
    page.get_by_label("Input", exact=True).fill('"Garamond"')
    page.get_by_role("button", name="Fork").click()
    expect(page.locator("#why")).to_contain_text("no such font: Garamond")
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("status").filter(has_text="continues the one")).to_be_visible()

    run = desk.start(ship, Order(6), key="clicks")
    page = reader.go(f"/runs/{run}")
    page.locator("#head summary", has_text="Pause").click()
    page.get_by_label("Reason").first.fill("a look")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#why")).to_contain_text("a look")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#head summary", has_text="Pause")).to_be_visible()
    page.locator("#head summary", has_text="Cancel").click()
    page.get_by_role("button", name="Cancel the run").click()
    expect(page.locator("#head")).to_contain_text("cancelled")


def test_a_person_decides_and_cancels_many(desk: Desk, reader: Reader) -> None:
    run = desk.start(refund, Order(77), key="refund-77")
    page = reader.go("/approvals")
    card = page.locator("article", has_text="Refund order 77?")
    card.get_by_label("amount *").fill("12.5")
    card.get_by_label("reason").select_option("late")
    card.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("status").filter(has_text="decision was sent")).to_be_visible()
    assert desk(desk.client.runs.wait, run).output.startswith("Terms(amount=12.5, reason='late'")
    for number in range(3):
        desk.start(ship, Order(number), tags=["many"])
    page = reader.go("/runs?q=tag:many")
    page.get_by_text("All matching").click()
    page.get_by_label("What").select_option("cancel")
    page.get_by_role("button", name="Count them").click()
    page.get_by_label("Type 3 to confirm").fill("3")
    page.get_by_role("button", name="Cancel 3 runs").click()
    expect(page.locator("#job")).to_contain_text("completed")
    expect(page.locator("#job")).to_contain_text("3 changed")


def test_runs_of_a_list_are_chosen(desk: Desk, reader: Reader) -> None:
    """By clicks and by keys; what was chosen stays so while the list changes."""
    runs = [desk.start(ship, Order(number), tags=["choose"]) for number in range(3)]
    for run in runs:
        desk.await_state(run, "waiting")
    page = reader.go("/runs?q=tag:choose")
    expect(page.locator("#live")).to_have_text("live")
    boxes, all_ = page.locator("td [name=run]"), page.get_by_label("all of this page")
    all_.check()
    assert [box.is_checked() for box in boxes.all()] == [True] * 3
    boxes.nth(1).uncheck()
    assert not all_.is_checked()
    assert all_.evaluate("each => each.indeterminate")
    desk(desk.client.runs.pause, runs[1])
    expect(page.locator("#rows")).to_contain_text("paused")
    assert [box.is_checked() for box in boxes.all()] == [True, False, True]
    boxes.nth(0).uncheck()
    page.keyboard.press("j")  # the box that was clicked has the focus, and hears keys
    page.keyboard.press("x")
    page.keyboard.press("x")
    assert [box.is_checked() for box in boxes.all()] == [False, False, True]
    page.get_by_label("Do with the chosen").select_option("cancel")
    page.get_by_role("button", name="Count the chosen").press("Enter")
    expect(page.locator("main")).to_contain_text("1 run chosen")
    page.get_by_label("Type 1 to confirm").fill("1")
    page.get_by_role("button", name="Cancel 1 run").click()
    expect(page.locator("#job")).to_contain_text("1 changed")
    desk.await_state(runs[0], "cancelled")
    assert desk(desk.client.runs.get, runs[2]).state == "waiting"


@pytest.mark.parametrize(("status", "notice"), [(503, "does not answer"), (401, "logged out")])
def test_a_page_that_is_not_up_to_date_says_so(
    desk: Desk, reader: Reader, status: int, notice: str
) -> None:
    """Only the foot of the page said it, in a word, and a narrow window has no foot."""
    page = reader.page
    page.set_viewport_size({"width": 360, "height": 800})
    page.clock.install()
    page.route("**/*live=1*", lambda route: route.fulfill(status=status))
    with page.expect_response("**/workers?live=1"):
        reader.go("/workers")
    said = page.get_by_role("alert").filter(has_text=notice)
    page.clock.run_for(9_000)
    expect(said).to_be_visible()
    page.unroute("**/*live=1*")
    for _ in range(8):  # it asks again by itself, each time a little later
        page.clock.run_for(10_000)
    expect(page.get_by_role("alert")).to_have_count(0)
    reader.complaints.clear()  # what the browser says of the requests that were refused


def test_what_needs_a_person_stands_first_and_has_no_box_to_choose(
    desk: Desk, reader: Reader
) -> None:
    """Charts stood above it; the boxes of other lists than that of runs belonged to no form."""
    failed = desk.start(render, "times", key="needs a person")
    desk(desk.client.runs.wait, failed)
    page = reader.go("/")
    names = page.get_by_role("heading", level=2).all_text_contents()
    place = {name: [name in each for each in names].index(True) for name in ("Failed", "Runs of")}
    assert place["Failed"] < place["Runs of"]
    expect(page.get_by_role("row")).not_to_have_count(0)
    expect(page.get_by_role("checkbox")).to_have_count(0)
    reader.go("/runs")
    expect(page.get_by_role("checkbox")).not_to_have_count(0)


def test_a_list_of_runs_shows_what_they_do_in_each_window(desk: Desk, reader: Reader) -> None:
    """Long names and keys pushed it out of the window."""
    run = desk.start(render, HOSTILE, key="a long key " + "k" * 60)
    desk(desk.client.runs.wait, run)
    for width in (768, 1000, 1280):
        reader.page.set_viewport_size({"width": width, "height": 800})
        row = reader.go("/runs?state=failed").get_by_role("row").filter(has_text="a long key")
        box = row.locator(".now").first.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width, width


def test_a_note_of_the_timeline_is_as_wide_as_the_window_lets_it(
    desk: Desk, reader: Reader
) -> None:
    """Errors were cut after 25 characters beside bars of a thousand pixels."""
    run = desk.start(render, "a font that nobody has on this machine")
    desk(desk.client.runs.wait, run)
    reader.page.set_viewport_size({"width": 1920, "height": 800})
    note = reader.go(f"/runs/{run}").locator(".strip .note").last
    expect(note).to_contain_text("on this machine")
    assert note.evaluate("each => each.scrollWidth <= each.clientWidth")


def test_a_run_with_a_long_key_can_be_chosen_in_a_narrow_window(desk: Desk, reader: Reader) -> None:
    """Its key had all of the row: the box was 0 pixels wide."""
    for number in range(2):
        desk.start(ship, Order(number), key=f"{number}-" + "x" * 200, tags=["long"])
    reader.page.set_viewport_size({"width": 360, "height": 800})
    boxes = reader.go("/runs?q=tag:long").locator("td [name=run]")
    expect(boxes).to_have_count(2)
    assert [each.evaluate("each => each.clientWidth >= 12") for each in boxes.all()] == [True] * 2


def test_a_name_that_turns_its_direction_turns_nothing_around_it(
    desk: Desk, reader: Reader
) -> None:
    """U+202E would write the rest of the line from right to left, too."""
    desk.start(ship, Order(1), key="\u202ekcab")
    name = reader.go("/runs?q=\u202ekcab").get_by_role("heading", level=1)
    expect(name).to_contain_text("kcab")
    assert name.evaluate("each => getComputedStyle(each).unicodeBidi") == "isolate"


@pytest.mark.parametrize("width", [360, 1280])
def test_long_names_are_broken_in_each_place(desk: Desk, reader: Reader, width: int) -> None:
    """The key, tags and attributes of a run, and what filters by them."""
    tag, key, customer = "t" * 500, "k" * 480 + str(width), "c" * 400
    asking = desk.start(
        refund, Order(2), key=key, tags=[tag, "r" * 300], attributes={"customer": customer}
    )
    desk.await_state(asking, "waiting")
    listening = desk.start(listen, "signal_" * 18)
    desk.await_state(listening, "waiting")
    reader.page.set_viewport_size({"width": width, "height": 800})
    paths = [f"/runs/{asking}", f"/runs/{asking}?tab=data", f"/runs/{asking}/fork", "/approvals"]
    paths += [f"/runs?q=tag:{tag}", f"/runs?q=customer={customer}", f"/runs?q={key}"]
    paths += [f"/bulk?do=cancel&q=tag:{tag}", f"/bulk?do=cancel&run={asking}", "/"]
    paths += [f"/runs/{listening}"]
    for path in paths:
        page = reader.go(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert open_all(page) == [], path


def test_the_keyboard_is_enough(desk: Desk, reader: Reader) -> None:
    run = desk.start(ship, Order(8), key="keys", tags=["keys"])
    page = reader.go("/")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/runs")  # and until it is loaded: before that it hears no keys
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("tag:keys")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs?*")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{run}")
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keys", exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="Keys", exact=True)).to_be_hidden()
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")


def test_what_has_the_focus_keeps_it_while_a_page_changes(desk: Desk, reader: Reader) -> None:
    """The key that is pressed next acts on what was chosen, not on what came into its place."""
    desk(_furnish, desk.client)
    asking = desk.start(refund, Order(11), key="focus-0")
    desk.await_state(asking, "waiting")
    page = reader.go("/approvals")
    card = page.locator("article", has_text="Refund order 11?")
    card.get_by_role("button", name="Approve").focus()
    expect(page.locator("#live")).to_have_text("live")
    later = desk.start(refund, Order(12), key="focus-1")
    desk.await_state(later, "waiting")
    expect(page.locator("article", has_text="Refund order 12?")).to_be_visible()
    expect(card.get_by_role("button", name="Approve")).to_be_focused()

    desk(desk.client.schedules.trigger, "nightly")
    page = reader.go("/schedule?name=desk/nightly")
    ticks = page.get_by_role("region", name="Ticks, newest first")
    first = ticks.locator("tbody a").first.get_attribute("href")
    ticks.locator("tbody a").first.focus()
    expect(page.locator("#live")).to_have_text("live")
    desk(desk.client.schedules.trigger, "nightly")
    expect(ticks.locator("tbody a").first).not_to_have_attribute("href", first or "")
    expect(page.locator(":focus")).to_have_attribute("href", first or "")


def test_a_long_timeline_is_loaded_in_windows(desk: Desk, reader: Reader) -> None:
    run = desk.start(count, 800, key="long")
    desk(desk.client.runs.wait, run)
    page = reader.go(f"/runs/{run}")
    line = page.locator("summary", has_text="tick x 800")
    expect(line).to_be_visible()
    assert page.locator(".strip").count() < 60
    line.click()
    windows = page.locator("details[open] .window")
    expect(windows).to_have_count(8)
    expect(windows.first.locator(".strip")).to_have_count(100)
    ids = page.locator("[id]").evaluate_all("all => all.map(each => each.id)")
    assert len(ids) == len(set(ids))  # else a live part would replace the row that is open
    windows.last.scroll_into_view_if_needed()
    expect(windows.last.locator(".strip")).to_have_count(100)
    expect(windows.first.locator(".strip")).to_have_count(0)
    assert page.locator(".strip").count() <= 1 + 5 * 100


def test_a_window_that_could_not_be_loaded_is_loaded_again(desk: Desk, reader: Reader) -> None:
    """It stays in sight meanwhile: nobody has to move it away and back."""
    run = desk.start(count, 300, key="long again")
    desk(desk.client.runs.wait, run)
    page = reader.go(f"/runs/{run}")
    page.route("**/timeline?*", lambda route: route.abort())
    with page.expect_event("requestfailed"):
        page.locator("summary", has_text="tick x 300").click()
    page.unroute("**/timeline?*")
    first = page.locator("details[open] .window").first
    expect(first.locator(".strip")).to_have_count(100)
    reader.complaints.clear()  # what the browser says of the request that failed


@pytest.mark.slow
def test_edge_27_ten_tabs_are_all_kept_up_to_date(desk: Desk, chromium: Browser) -> None:
    """Edge case 27. A browser has six connections to a host: streams must not take all of them."""
    run = desk.start(ship, Order(27), key="tabs")
    desk.await_state(run, "waiting")
    context = chromium.new_context()
    reader = Reader(desk, context)
    tabs = [reader.go(f"/runs/{run}"), *(context.new_page() for _ in range(9))]
    for tab in tabs[1:]:
        tab.goto(f"{desk.site}/runs/{run}")
        expect(tab.locator("#head")).to_contain_text("waiting")
    desk(desk.client.handle(run).signal, "picked-up")
    for tab in tabs:
        expect(tab.locator("#head")).to_contain_text("completed")
    assert tabs[0].goto(f"{desk.site}/workers") is not None
    context.close()
    assert reader.complaints == []


def test_edge_27_a_tab_that_is_not_seen_has_no_stream(desk: Desk, reader: Reader) -> None:
    """Edge case 27. One that is opened in the background follows when it is looked at."""
    run = desk.start(ship, Order(28), key="unseen")
    desk.await_state(run, "waiting")
    hide = "Object.defineProperty(document, 'hidden', {get: () => window.seen !== true})"
    reader.page.add_init_script(hide)
    page = reader.go(f"/runs/{run}")
    page.wait_for_load_state("networkidle")
    assert page.locator("#stream[hx-sse\\:connect]").count() == 0
    desk(desk.client.handle(run).signal, "picked-up")
    desk(desk.client.runs.wait, run)
    expect(page.locator("#head")).to_contain_text("waiting")
    page.evaluate("window.seen = true; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#head")).to_contain_text("completed")


def test_edge_28_ages_are_the_engines_and_days_of_25_hours_are_told_apart(
    desk: Desk, chromium: Browser
) -> None:
    """Edge case 28. The clock of the browser is an hour late; its zone leaves summer time."""
    run = desk.start(ship, Order(29), key="clock")
    desk.await_state(run, "waiting")
    context = chromium.new_context(timezone_id="Europe/Berlin", locale="en-GB")
    context.add_init_script("const now = Date.now; Date.now = () => now.call(Date) - 3600000")
    reader = Reader(desk, context)
    page = reader.go(f"/runs/{run}")
    age = page.locator("#head time[data-form=ago]").first
    expect(age).to_have_text(re.compile(r"^\d+ s ago$"))
    page.evaluate("""() => {
        for (const [id, hour] of [["before", "00"], ["after", "01"]]) {
            const at = `2026-10-25T${hour}:30:00Z`;
            const time = document.createElement("time");
            Object.assign(time, { id, dateTime: at }).dataset.form = "clock";
            document.querySelector("main").append(time);
        }
    }""")
    for name, title in (("before", "00:30:00.000 UTC"), ("after", "01:30:00.000 UTC")):
        time = page.locator(f"#{name}")
        expect(time).to_have_attribute("title", f"2026-10-25 {title}")
        expect(time).to_contain_text("02:30:00")
    expect(page.get_by_text("times in Europe/Berlin")).to_be_visible()
    context.close()
    assert reader.complaints == []


def test_a_page_without_the_side_fills_the_window(desk: Desk, chromium: Browser) -> None:
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    stranger = Reader(desk, context)
    context.clear_cookies()
    page = stranger.go("/nothing")
    expect(page.get_by_role("navigation", name="Pages")).to_have_count(0)
    expect(page.get_by_role("heading", name="No such page")).to_be_visible()
    expect(page).to_have_title("No such page · holdfast")
    assert page.locator("main").evaluate("each => each.clientWidth") > 1000
    context.close()


def test_a_narrow_window_shows_the_whole_navigation(desk: Desk, reader: Reader) -> None:
    reader.page.set_viewport_size({"width": 360, "height": 800})
    page = reader.go("/workers")
    places = page.get_by_role("navigation", name="Pages").get_by_role("link")
    ends = places.evaluate_all("all => all.map(each => each.getBoundingClientRect().right)")
    assert len(ends) == 9
    assert max(ends) <= 360


def test_the_name_of_a_workflow_is_on_one_line(desk: Desk, reader: Reader) -> None:
    page = reader.go("/workflows")
    link = page.get_by_role("link", name="desk/checkout", exact=True)
    assert link.evaluate("each => each.getClientRects().length") == 1


def test_a_time_to_come_has_two_units(desk: Desk, reader: Reader) -> None:
    page = reader.go("/")
    page.evaluate("""() => {
        for (const [id, minutes] of [["days", 2880], ["hours", 125.5], ["minutes", 9.5]]) {
            const time = document.createElement("time");
            time.id = id;
            time.dateTime = new Date(Date.now() + minutes * 60000).toISOString();
            document.querySelector("main").append(time);
        }
    }""")
    expect(page.locator("#days")).to_have_text("in 1 d 23 h")
    expect(page.locator("#hours")).to_have_text("in 2 h 5 min")
    expect(page.locator("#minutes")).to_have_text("in 9 min")


def test_a_run_that_ended_without_a_step_says_so(desk: Desk, reader: Reader) -> None:
    async def start_unchecked() -> str:
        async with Client(store=desk.store) as client:  # has no app: the worker finds the misfit
            return str((await client.start("desk/ship", "no order")).run_id)

    run = desk(start_unchecked)
    desk.await_state(run, "failed")
    page = reader.go(f"/runs/{run}")
    expect(page.locator("main")).to_contain_text("It ended without a step.")


def test_pages_can_be_read_and_sent_without_scripts(desk: Desk, chromium: Browser) -> None:
    run = desk.start(ship, Order(9), key="plain")
    desk.await_state(run, "waiting")
    context = chromium.new_context(java_script_enabled=False)
    page = Reader(desk, context).go(f"/runs/{run}")
    page.locator("#head summary", has_text="Cancel").click()
    page.get_by_role("button", name="Cancel the run").click()
    expect(page.get_by_text("The run was asked to end.")).to_be_visible()
    desk(desk.client.runs.wait, run)
    for number in range(2):
        desk.start(ship, Order(number), tags=["plain"])
    page.goto(f"{desk.site}/runs?q=tag:plain")
    page.get_by_label("all of this page").check()
    page.get_by_label("Do with the chosen").select_option("cancel")
    page.get_by_role("button", name="Count the chosen").click()
    expect(page.locator("main")).to_contain_text("2 runs would be changed")
    page.goto(f"{desk.site}/runs?q=tag:plain")
    page.locator("td [name=run]").first.check()
    page.get_by_role("button", name="Count the chosen").click()
    expect(page.locator("main")).to_contain_text("1 run chosen")
    context.close()
