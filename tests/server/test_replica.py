"""Lists of the server and of the command line come from a replica, and say how old they are."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from holdfast.cli import connecting, exits
from holdfast.cli.root import holdfast
from holdfast.client import Client
from holdfast.database.embedded import EmbeddedServer
from holdfast.database.resolve import Connecting, Database, Source
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.server.api.dispatch import LAG_HEADER
from holdfast.store.postgres import following
from tests.cli.processes import call
from tests.clusters import Homes
from tests.proxy import Proxy
from tests.server.processes import server
from tests.server.shop import HOST, KEY, Api, app
from tests.standbys import Pair, streaming


@pytest.fixture(scope="module")
def pair(homes: Homes) -> Iterator[Pair]:
    with streaming(homes) as pair:
        yield pair


@pytest.fixture
def way(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The way from the server to its replica, which is tried again at each call."""
    monkeypatch.setattr(following, "_AWAY_SECONDS", 0.0)
    monkeypatch.setattr(following, "_LAG_SECONDS", 0.0)
    with Proxy(pair.standby.url) as way:
        yield way


@pytest.fixture
async def serving(pair: Pair, way: Proxy) -> AsyncIterator[httpx.ASGITransport]:
    database = Database(pair.primary.url, Source.OPTION, connecting=Connecting(read_url=way.url))
    async with Server(database, auth=KeyAccess(KEY), app=app, hosts=[HOST]) as opened:
        yield httpx.ASGITransport(opened)


@pytest.fixture
async def http(serving: httpx.ASGITransport) -> AsyncIterator[httpx.AsyncClient]:
    """A caller of the API."""
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(
        transport=serving, base_url=f"http://{HOST}", headers=headers
    ) as http:
        yield http


@pytest.fixture
async def browser(serving: httpx.ASGITransport) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=serving, base_url=f"http://{HOST}") as browser:
        assert (await browser.get(f"/login?key={KEY}")).status_code == 303
        yield browser


@pytest.fixture
def behind(pair: Pair) -> Iterator[Pair]:
    """The standby does not replay what the test does."""
    pair.pause()
    yield pair
    pair.resume()


LISTS = (
    "/v1/runs",
    "/v1/flows",
    "/v1/schedules",
    "/v1/approvals",
    "/v1/stats",
    "/v1/load",
    "/v1/workflows",
)


async def test_lists_say_how_far_their_replica_is_behind(
    http: httpx.AsyncClient, behind: Pair
) -> None:
    """S15: the answers about one run are of the moment, and do not have the header."""
    run_id = await Api(http).start(7)
    listed = await http.get("/v1/runs")
    assert run_id not in listed.text
    assert float(listed.headers[LAG_HEADER]) > 0
    for path in (f"/v1/runs/{run_id}", f"/v1/runs/{run_id}/events", f"/v1/runs/{run_id}/steps"):
        answer = await http.get(path)
        assert answer.status_code == 200
        assert LAG_HEADER not in answer.headers
    behind.resume()
    assert run_id in (await http.get("/v1/runs")).text


async def test_while_the_replica_is_away_lists_come_from_the_database(
    http: httpx.AsyncClient, way: Proxy
) -> None:
    """S15."""
    run_id = await Api(http).start(7)
    way.refuse()
    way.cut()
    listed = await http.get("/v1/runs")
    assert run_id in listed.text
    assert LAG_HEADER not in listed.headers
    assert (await http.get("/ready")).status_code == 200


@pytest.mark.parametrize("path", LISTS)
async def test_each_list_is_read_from_the_replica(
    pair: Pair, http: httpx.AsyncClient, path: str
) -> None:
    async with Client(pair.primary.url) as client:
        await client.queues.create("letters")
    pair.catch_up()
    answer = await http.get(path)
    assert answer.status_code == 200, answer.text
    assert LAG_HEADER in answer.headers


PAGES = ("/", "/runs", "/approvals", "/schedules", "/messages")


@pytest.mark.parametrize("path", PAGES)
async def test_pages_with_lists_say_where_these_are_read(
    browser: httpx.AsyncClient, way: Proxy, path: str
) -> None:
    """S15."""
    page = (await browser.get(path)).text
    assert re.search('<span id="reads">lists: replica, [^<]* behind</span>', page)
    way.refuse()
    way.cut()
    page = (await browser.get(path)).text
    assert '<span id="reads">lists: the database; the replica is away</span>' in page


async def test_the_page_of_a_run_is_of_the_moment(
    http: httpx.AsyncClient, browser: httpx.AsyncClient, behind: Pair
) -> None:
    run_id = await Api(http).start(7)
    page = await browser.get(f"/runs/{run_id}")
    assert page.status_code == 200
    assert 'id="reads"' not in page.text


async def test_the_overview_warns_of_a_replica_that_is_away(
    browser: httpx.AsyncClient, way: Proxy
) -> None:
    assert "not from postgresql://" not in (await browser.get("/")).text
    way.refuse()
    way.cut()
    assert "not from postgresql://" in (await browser.get("/")).text
    assert "not from postgresql://" in (await browser.get("/doctor")).text


async def test_a_bulk_change_finds_runs_that_the_replica_does_not_have(
    http: httpx.AsyncClient, behind: Pair
) -> None:
    """S15: what is changed, and how many a dry run counts, is decided by the database."""
    await Api(http).start(7, key="bulk")
    body = {"do": "cancel", "where": {"key": "bulk"}}
    dry = await http.post("/v1/bulk", json=body | {"dry_run": True})
    assert '"matched":1' in dry.text
    done = await http.post("/v1/bulk", json=body | {"dry_run": False})
    assert '"changed":1' in done.text


# As processes


def test_an_open_page_says_how_far_the_replica_is_behind_now(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with server(pair.primary.url, tmp_path, "--read-database", pair.standby.url) as (_, http):
        http.get("/login", params={"key": http.headers["authorization"].split()[1]})
        with http.stream("GET", "/?live=1") as stream:
            parts = next(line for line in stream.iter_lines() if 'hx-target="#reads"' in line)
    assert "lists: replica, " in parts


def test_the_server_starts_beside_a_replica_that_is_away(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with Proxy(pair.standby.url) as way:
        way.refuse()
        with server(pair.primary.url, tmp_path, "--read-database", way.url) as (process, http):
            assert http.get("/v1/runs").status_code == 200
            assert process.text().count("lists are read from the database") == 1
            assert http.get("/v1/runs").status_code == 200
            assert process.text().count("lists are read from the database") == 1


def test_the_server_refuses_a_read_database_that_is_another(
    pair: Pair, embedded_server: EmbeddedServer
) -> None:
    """S15."""
    asked = ("--database", pair.primary.url, "--read-database", embedded_server.url)
    done = call(*asked, "server", "--port", "0")
    assert done.returncode == exits.USAGE
    assert "is not a streaming replica of" in done.stderr
    assert "Traceback" not in done.stderr
    again = call(*asked, "runs", "list")
    assert again.returncode == exits.USAGE
    assert "is not a streaming replica of" in again.stderr


def test_lists_of_the_command_line_say_how_old_they_are(
    behind: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S15: `runs list` may miss a run, and says so; `runs show` finds it."""
    environment = {
        "HOLDFAST_DATABASE_URL": behind.primary.url,
        "HOLDFAST_READ_DATABASE_URL": behind.standby.url,
    }
    monkeypatch.setattr(connecting, "_OLD_SECONDS", 0.0)

    def ask(*arguments: str) -> tuple[str, str]:
        done = CliRunner(env=environment).invoke(holdfast, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout, done.stderr

    run_id = ask("start", "shop/checkout", "7")[0].strip()
    listed, said = ask("runs", "list")
    assert run_id not in listed
    # The second line is there if no earlier test has started a run.
    assert re.fullmatch("from the read database, .* behind\n(no runs in .*\n)?", said)
    shown, said = ask("runs", "show", run_id)
    assert run_id in shown
    assert "from the read database" not in said
    found, _ = ask("doctor")
    assert "lists are read from postgresql://" in found
