"""Forks whose input does not fit the entries that they keep."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator

import httpx
import pytest

from holdfast.server import Server
from holdfast.store.port import Store
from holdfast.worker import Worker
from tests.server.desk import app, deliver
from tests.server.test_operations import until
from tests.server.test_pages import browser, page, send, server

__all__ = ["browser", "server"]  # fixtures


@pytest.fixture(autouse=True)
async def desk_worker(store: Store) -> AsyncIterator[None]:
    """Run the app of the pages."""
    worker = Worker(app, store)
    await worker.start()
    yield
    await worker.stop(grace=0)


async def test_edge_25_a_fork_that_is_stuck_leads_to_one_that_is_not(
    server: Server, browser: httpx.AsyncClient
) -> None:
    """Edge case 25. Its page says which entry does not fit, and offers a fork from before it."""
    client = server.site.client

    async def in_state(run_id: object, state: str) -> bool:
        return (await client.runs.get(str(run_id))).state == state

    run_id = (await client.start(deliver, "air")).run_id
    await until(lambda: in_state(run_id, "completed"))
    form = await page(browser, f"/runs/{run_id}/fork?index=2")
    new = re.search(r'name="run_id" value="([^"]+)"', form)
    assert new is not None
    await send(browser, f"/runs/{run_id}/fork", run_id=new[1], index="2", input='"sea"')
    await until(lambda: in_state(new[1], "stuck"))
    told = await page(browser, f"/runs/{new[1]}")
    shown = html.unescape(re.sub(r"<[^>]+>", " ", told))
    assert "the log has step pack under 'pack', which this code has not called" in shown
    assert "its changed input makes the code take another path" in shown
    assert "fork from an earlier index" in shown
    link = re.search(r'href="(/runs/[^"]+/fork\?index=[^"]+)"', told)
    assert link is not None
    form = html.unescape(await page(browser, html.unescape(link[1])))
    assert '>"sea"</textarea>' in form  # what was typed is not lost
    fields = dict(re.findall(r'name="(run_id|index)"[^>]* value="([^"]+)"', form))
    assert int(fields["index"]) < 2
    answer = await send(browser, f"/runs/{run_id}/fork", **fields, input='"sea"')
    assert answer.headers["location"] == f"/runs/{fields['run_id']}?done=fork"
    await until(lambda: in_state(fields["run_id"], "completed"))
    ended = await client.runs.get(fields["run_id"])
    assert ended.output == "parcel with lamp, sea"


async def test_edge_20_a_large_input_stays_when_its_field_is_left_empty(
    server: Server, browser: httpx.AsyncClient
) -> None:
    """Edge case 20. A form cannot show it, and must not replace it by a part of it."""
    large = "x" * 20_000
    run_id = (await server.site.client.start(deliver, large)).run_id
    form = await page(browser, f"/runs/{run_id}/fork?index=1")
    assert "left empty, it stays as it is" in form
    assert "xxx" not in form
    fields = dict(re.findall(r'name="(run_id|index)"[^>]* value="([^"]+)"', form))
    await send(browser, f"/runs/{run_id}/fork", **fields, input="")
    assert (await server.site.client.runs.get(fields["run_id"])).input == large
