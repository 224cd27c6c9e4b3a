"""What a caller may not see does not exist for it: each route is tried with what others have."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import typing
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest
from click.testing import CliRunner, Result

from holdfast import App, Client, Context, Retry, current_step
from holdfast.cli.root import holdfast
from holdfast.errors import RunFailed
from holdfast.events import TYPES
from holdfast.mcp.server import McpServer
from holdfast.payloads import AesGcm
from holdfast.server import Principal
from holdfast.server.api.table import OPERATIONS
from holdfast.server.hiding import DETAILS, FIELDS, MARK, REFUSED
from holdfast.server.operations import Operation
from holdfast.server.pages.table import TABLE
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.types import ErrorInfo, Notice
from holdfast.values.ids import keyed_run_id, uuid7
from holdfast.worker import Worker, WorkerOptions
from tests.server.seen import SECRET, Asker, Furnished, asking, furnished, make_app

GHOST = Furnished(
    "ghost",
    dict.fromkeys(("work", "broken", "graph", "one", "two", "child"), UUID(int=7 << 76 | 2 << 62)),
    "",
    "Refund?",
)
OF_SHOP = Principal("clerk", "admin", only=("shop",))
TABS = ("log", "data", "lines", "streams")
BLIND = Principal("blind", "admin", payloads=False)


def memory() -> Store:
    return MemoryStore(clock=lambda: time.time_ns() // 1000)


def body_of(operation: Operation, of: Furnished, run: UUID) -> Any:
    """Return a body with which the operation changes something of an app, if it may."""
    token = of.token or f"{run}:1:scan"
    bodies: dict[str, Any] = {
        "start_run": {"input": "x"},
        "reschedule_run": {"queue": "x"},
        "set_attributes": {"attributes": {"a": 1}},
        "set_tags": {"add": ["a"]},
        "send_signal": "x",
        "send_update": "x",
        "decide_approval": {"key": of.approval, "approved": True, "values": {"reason": "x"}},
        "complete_activity": {"token": token, "result": "x"},
        "fail_activity": {"token": token, "error": "x"},
        "change_runs": {
            "do": "cancel",
            "where": {"workflow": [f"{of.app}/work"]},
            "dry_run": False,
        },
        "create_schedule": {"name": f"{of.app}/more", "workflow": f"{of.app}/work", "every": "1h"},
        "backfill_schedule": {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"},
        "set_limit": {"scope": "workflow", "name": f"{of.app}/work", "kind": "active", "most": 0},
        "create_message_queue": {"name": f"{of.app}-mail"},
        "send_message": {"payload": 1},
        "ack_messages": {"receipts": ["1.1.1"]},
        "nack_messages": {"receipts": ["1.1.1"]},
        "extend_messages": {"receipts": ["1.1.1"], "visibility": 9},
        "change_queued_message": {"payload": 1},
        "publish_event": {"topic": "t", "payload": 1},
        "receive_webhook": "x",
        "promote_build": {"build": "b1", "app": of.app},
        "ramp_build": {"build": "b1", "app": of.app, "percent": 10},
        "roll_back_build": {"app": of.app},
        "move_to_build": {"run_ids": [str(run)], "build": None},
    }
    assert operation.name in bodies or operation.body is None or not operation.body_required, (
        f"say a body of {operation.name}"
    )
    return bodies.get(operation.name)


def urls_of(operation: Operation, of: Furnished) -> list[tuple[str, UUID]]:
    """Return the paths of an operation, filled in with what an app has, each with its run."""
    names = {"schedules": "nightly", "message-queues": f"{of.app}-mail", "flows": "graph"}
    query = {"get_update": "id=u-1", "count_runs": "by=workflow"}.get(operation.name, "")
    if operation.name == "remove_limit":
        query = f"scope=workflow&name={of.app}/work&kind=active"
    if "app" in operation.query.__struct_fields__:
        query = f"{query}&app={of.app}"
    found: list[tuple[str, UUID]] = []
    for path in operation.paths:
        kind = path.split("/")[2]
        for name in [names.get(kind, "work")] if "{name}" in path else [""]:
            for run in of.runs.values() if "{run}" in path else [of.runs["work"]]:
                url = path.format(
                    name=name,
                    run=run,
                    event="go",
                    update="rename",
                    stream="words",
                    token="x",
                    message=1,
                )
                found.append((f"{url}?{query.strip('&')}".rstrip("?"), run))
    return found


def plain(text: str, of: Furnished) -> str:
    """Return an answer without what the request itself named."""
    for run in of.runs.values():
        text = text.replace(str(run), "RUN").replace(str(run)[-8:], "RUN")
    if of.token:
        text = text.replace(of.token.partition(":")[2], "1:scan")
    return text.replace(of.app, "APP")


async def logs_of(store: Store, of: Furnished) -> dict[UUID, int]:
    found = await store.read_events([(run, 0) for run in of.runs.values()])
    return {run: len(events) for run, events in found.items()}


async def test_no_operation_tells_of_what_is_not_seen() -> None:
    """Of a run, a workflow or a queue that is not seen each answer is that of none at all."""
    store = memory()
    async with furnished(store) as (asker, shop, vault):
        before = await logs_of(store, vault)
        asker.principal = OF_SHOP
        for operation in OPERATIONS:
            ghosts = urls_of(operation, GHOST)
            for (url, run), (ghost_url, ghost) in zip(
                urls_of(operation, vault), ghosts, strict=True
            ):
                found = await asker.ask(operation.method, url, body_of(operation, vault, run))
                absent = await asker.ask(
                    operation.method, ghost_url, body_of(operation, GHOST, ghost)
                )
                found, absent = plain(found, vault), plain(absent, GHOST)
                moving = r"\d+\.\d+|\d{4}-\d\d-\d\dT[\d:.]+Z|\b\d{6,}\b"
                assert re.sub(moving, "", found) == re.sub(moving, "", absent), url
                assert "vault" not in found
                assert not any(str(each) in found for each in vault.runs.values()), url
                if "{run}" in operation.path and operation.name != "restore_run":
                    assert found.startswith("404 "), (url, found)
        everything = {"do": "cancel", "where": {}, "dry_run": False}
        assert "done" in await asker.ask("POST", "/v1/bulk", everything)
        chosen = ",".join(map(str, vault.runs.values()))
        assert "vault" not in await asker.ask("GET", f"/v1/runs?parent={vault.runs['work']}")
        form = {"count": "6", "typed": "6", "job": str(uuid7())}
        await asker.ask("POST", f"/bulk?do=terminate&run={chosen}", form=form)
        assert await logs_of(store, vault) == before
        assert await logs_of(store, shop) != before
        asker.principal = Principal("all", "admin")
        assert '"terminated"' not in await asker.ask("GET", f"/v1/runs/{vault.runs['work']}")


async def test_no_page_tells_of_what_is_not_seen() -> None:
    store = memory()
    async with furnished(store) as (asker, _, vault):
        before = await logs_of(store, vault)
        asker.principal = OF_SHOP
        for row in TABLE:
            for run in vault.runs.values() if "{run}" in row.path else [vault.runs["work"]]:
                path = row.path.format(run=run, what="input", job=uuid7(), do="pause")
                names = ["vault/work"]
                names += ["vault/nightly"] if "schedule" in path else []
                names += ["vault-mail", "default"] if "queue" in path else []
                for name in names:
                    query = {"name": name, "do": "cancel", "workflow": name}
                    asked = "&".join(f"{each}={query[each]}" for each in query if each in row.query)
                    url, form = (
                        f"{path}?{asked}",
                        {
                            "name": "go" if "/do/" in path else name,
                            "key": vault.approval,
                            "approved": "yes",
                            "id": "1",
                            "payload": "1",
                            "run_id": str(uuid7()),
                            "count": "0",
                            "typed": "0",
                        },
                    )
                    form = {each: form[each] for each in form if each in row.form}
                    for live in ("", "&live=1") if row.method == "GET" else ("",):
                        options: dict[str, Any] = {"form": form} if row.method == "POST" else {}
                        answer = await asker.ask(row.method, url + live, **options)
                        assert not answer.startswith("400 ") or "unknown" not in answer, url
                        told = answer.replace(name, "").replace(name.replace("/", "%2F"), "")
                        assert "vault" not in told.replace(f"workflow={name}", ""), url
                        others = set(vault.runs.values()) - {run}
                        assert not any(str(each) in answer for each in others), url
                        if "{run}" in row.path:
                            assert answer.startswith("404 "), (url, answer[:200])
        assert await logs_of(store, vault) == before


async def test_a_schedule_of_another_app_is_refused_by_its_name() -> None:
    async with furnished(memory()) as (asker, *_):
        asker.principal = OF_SHOP
        wrong = {"name": "vault/x", "workflow": "shop/work", "every": "1h"}
        answer = await asker.ask("POST", "/v1/schedules", wrong)
        assert answer.startswith("422 ")
        assert "'vault/x' cannot be a schedule of this caller: shop/ begins it" in answer


async def test_ids_of_keys_do_not_tell_if_a_run_exists() -> None:
    """The id of a key follows from it: a start with such an id would say that it is taken."""
    async with furnished(memory()) as (asker, _, vault):
        asker.principal = OF_SHOP
        taken, free = (keyed_run_id("vault/work", key) for key in ("vault-key", "no-key"))
        assert vault.runs["work"] == taken
        for path, fields in (
            ("/workflows/start", {"name": "shop/work", "input": '"x"'}),
            (f"/runs/{(await _own(asker))}/fork", {}),
        ):
            found, absent = [
                await asker.ask("POST", path, form={**fields, "run_id": str(each)})
                for each in (taken, free)
            ]
            assert found.startswith("422 ")
            moving = r"\d{13,}|[0-9a-f-]{36}"
            assert re.sub(moving, "", found) == re.sub(moving, "", absent)


async def _own(asker: Asker) -> str:
    runs = msgspec.json.decode((await asker.ask("GET", "/v1/runs?workflow=broken"))[5:])["runs"]
    return str(runs[0]["run_id"])


@pytest.mark.parametrize("kind", ["memory", "postgres"])
async def test_a_caller_works_with_what_it_sees(kind: str, request: pytest.FixtureRequest) -> None:
    if kind == "memory":
        store = memory()
    else:
        from holdfast.store.postgres import PostgresStore

        store = PostgresStore(request.getfixturevalue("database_url"))
        await store.open()
    async with furnished(store) as (asker, shop, _):

        async def read(url: str) -> Any:
            answer = await asker.ask("GET", url)
            assert answer.startswith("200 "), (url, answer)
            return msgspec.json.decode(answer[5:])

        everything = await read("/v1/runs/count?by=workflow")
        asker.principal = OF_SHOP
        counted = await read("/v1/runs/count?by=workflow")
        of_shop = {name: n for name, n in everything["counts"].items() if name.startswith("shop/")}
        assert counted["counts"] == of_shop
        assert {each["app"] for each in (await read("/v1/runs"))["runs"]} == {"shop"}
        assert [each["name"] for each in (await read("/v1/schedules"))["schedules"]] == [
            "shop/nightly"
        ]
        assert {each["app"] for each in (await read("/v1/alerts"))["alerts"]} == {"shop"}
        assert {each["app"] for each in (await read("/v1/builds"))["builds"]} == {"shop"}
        assert {each["workflow"] for each in (await read("/v1/approvals"))["approvals"]} == {
            "shop/work"
        }
        assert {each["name"] for each in (await read("/v1/flows"))["flows"]} == {"shop/graph"}
        served = (await read("/v1/workflows"))["workflows"]
        assert all(each["name"].startswith("shop/") for each in served)
        assert len((await read("/v1/workers"))["workers"]) == 1
        assert "shop-child" in str(await read(f"/v1/runs/{shop.runs['work']}/children"))
        for path in ("why", "events", "steps", "timeline", "values", "streams", "streams/words"):
            await read(f"/v1/runs/{shop.runs['work']}/{path}")
        started = await asker.ask("POST", "/v1/workflows/work/runs", {"input": "x", "key": "k"})
        assert started.startswith("201 ")
        assert (await asker.ask("POST", f"/v1/runs/{shop.runs['one']}/signals/go")).startswith(
            "200"
        )
        one = f"/v1/runs/{shop.runs['one']}?wait=20"  # or as long as a stream of this server
        async with asyncio.timeout(60):
            while (ended := await read(one))["status"] == "running":
                pass
        assert ended["status"] == "completed"
        retried = await asker.ask("POST", f"/v1/runs/{shop.runs['broken']}/retry")
        assert retried.startswith("201 "), retried
        for path in ("/", "/runs", "/workflows", "/schedules", f"/runs/{shop.runs['work']}"):
            assert (await asker.ask("GET", path)).startswith("200 "), path
        asker.principal = Principal("clerk", "admin", only=("shop/broken", "shop/nothing"))
        assert {each["name"] for each in (await read("/v1/runs"))["runs"]} == {"broken"}
        assert (await asker.ask("GET", f"/v1/runs/{shop.runs['work']}")).startswith("404 ")
        asker.principal = Principal("nobody", "admin", only=("other",))
        assert (await read("/v1/runs"))["runs"] == []
        assert (await read("/v1/runs/count?by=state"))["counts"] == {}
        if kind == "postgres":
            await _make_tokens(request.getfixturevalue("database_url"))
    await store.close()


async def _make_tokens(url: str) -> None:
    """A token is made for what there is, and refused for what there is not."""
    command = ["--database", url, "server", "token", "support", "read", "--hide-payloads"]

    async def run(*only: str) -> Result:
        asked = [word for each in only for word in ("--only", each)]
        return await asyncio.to_thread(CliRunner().invoke, holdfast, [*command, *asked])

    made = await run("shop", "vault/work")
    assert made.exit_code == 0, made.output
    assert made.stdout.endswith(" only=shop,vault/work payloads=hidden\n")
    for wrong, said in (
        ("shp", "'shp' has ever had a worker on this database (did you mean shop?)"),
        ("shop/wrk", "did you mean shop/work?"),
        ("a b", "what is seen"),
    ):
        refused = await run(wrong)
        assert refused.exit_code != 0
        assert said in refused.output, refused.output
        assert not refused.stdout


async def test_tools_of_an_app_are_not_for_callers_that_see_less() -> None:
    app = make_app("shop", {})
    for principal, status in (
        (Principal("a", "write", payloads=False), 403),
        (Principal("a", "write", only=("shop/work",)), 403),
        (Principal("a", "write", only=("shop",)), 400),  # it may call, and said nothing
    ):
        server = McpServer(app, store=memory(), auth=lambda _, who=principal: who, hosts=[])  # type: ignore[misc]
        async with server, httpx.AsyncClient(transport=httpx.ASGITransport(server)) as http:
            assert (await http.post("http://x/", json={})).status_code == status


async def test_no_route_shows_payloads_to_a_caller_that_may_not_see_them() -> None:
    async with furnished(memory()) as (asker, shop, vault):
        shown = await asker.ask("GET", f"/v1/runs/{shop.runs['work']}")
        assert SECRET in shown
        asker.principal = BLIND
        for operation in OPERATIONS:
            if operation.method != "GET":
                continue
            for of in (shop, vault):
                for url, _ in urls_of(operation, of):
                    answer = await asker.ask("GET", url)
                    assert SECRET not in answer, url
                    assert not answer.startswith("5"), (url, answer)
        for row in TABLE:
            if row.method != "GET":
                continue
            for what in ("input", "output", "0", "5") if "{what}" in row.path else ("",):
                for run in shop.runs.values() if "{run}" in row.path else [shop.runs["work"]]:
                    path = row.path.format(run=run, what=what, job=uuid7())
                    name = "shop/nightly" if path == "/schedule" else "shop/work"
                    name = "shop-mail" if path == "/message-queue" else name
                    for more in ("", "&live=1", *(f"&tab={tab}" for tab in TABS)):
                        answer = await asker.ask("GET", f"{path}?name={name}&do=cancel{more}")
                        assert SECRET not in answer, (path, more)
                        assert not answer.startswith("5"), (path, answer)
        run = shop.runs["work"]
        page = await asker.ask("GET", f"/v1/runs/{run}/logs?level=warning")
        for told in (
            f'"logger":"seen","message":"{MARK}","call":"echo","attempt":1',
            f'"fields":{{"text":"{MARK}"}}',
        ):
            assert told in page
        assert '"args":0' in await asker.ask("GET", f"/v1/runs/{run}/events")
        update = await asker.ask("POST", f"/v1/runs/{run}/updates/rename", "new")
        assert update.startswith("200 ")
        assert f'"result":"{MARK}"' in update
        found = await asker.ask("GET", f"/v1/runs?input.x={SECRET}")
        assert found.startswith("422 ")
        taken = await asker.ask("POST", "/v1/message-queues/shop-mail/receive", {})
        assert taken.startswith("403 ")
        retried = await asker.ask("POST", f"/v1/runs/{shop.runs['broken']}/retry?wait=10", {})
        assert SECRET not in retried
        asker.principal = Principal("all", "admin")
        again = await asker.ask("POST", f"/v1/runs/{shop.runs['broken']}/retry", {})
        new = msgspec.json.decode(again[again.index("{") :])["run_id"]
        assert SECRET in await asker.ask("GET", f"/v1/runs/{new}/input"), "a mark became an input"
        assert f'"payload":"shop {SECRET}"' in await asker.ask(
            "POST", "/v1/message-queues/shop-mail/receive", {}
        )


@pytest.mark.parametrize("policy", [None, Retry(attempts=2, base=0.01)])
async def test_a_caller_without_payloads_follows_runs_that_continue(policy: Retry | None) -> None:
    app, store, tries = App("shop"), memory(), [0]

    @app.step(retry=Retry.NEVER)
    async def say(text: str) -> None:
        await current_step().stream("words", type=str).write(text)
        tries[0] += 1
        if policy is not None and tries[0] < 2:
            raise OSError(text)

    @app.workflow(retry=policy)
    async def loop(ctx: Context, text: str) -> None:
        await say(text)
        if policy is None and not text.endswith("again"):
            ctx.continue_as_new(f"{text} again")
        await ctx.wait_for_signal("go")

    worker = Worker(app, store)
    await worker.start()
    async with Client(store=store, app=app) as client, asking(store) as asker:
        first = (await client.start(loop, SECRET, key="l")).run_id
        while (last := (await client.runs.get(("loop", "l"))).run_id) == first:
            await asyncio.sleep(0.01)
        asker.principal = BLIND
        run = f"/v1/runs/{first}"
        pages = ("", "/output", "/events", "/why", "/streams", "/streams/words")
        for path in (*pages, "/streams/words/follow", "/attach"):
            answer = await asker.ask("GET", f"{run}{path}")
            assert answer.startswith("200 "), (path, answer)
            assert SECRET not in answer, path
        assert str(last) in await asker.ask("GET", run)
        assert (await asker.ask("POST", f"{run}/signals/go", 1)).startswith("200 ")
        assert (await asker.ask("GET", f"/runs/{first}")).startswith("200 ")
    await worker.stop(grace=0)


async def test_who_has_no_key_is_told_so_and_sees_the_rest() -> None:
    """Of an app with a codec each page is there, without what only the codec opens."""
    store, sealed = memory(), App("sealed", payload_codec=AesGcm({"k9": AesGcm.new_key()}))
    log = logging.getLogger("sealed")

    @sealed.workflow
    async def work(ctx: Context, text: str) -> None:
        log.warning(text)
        await ctx.stream("progress").write(text)
        await ctx.wait_for_signal("go")

    @sealed.workflow
    async def fail(ctx: Context, text: str) -> None:
        raise OSError(text)

    worker = Worker(sealed, store, WorkerOptions(run_logs=True))
    await worker.start()
    async with Client(store=store, app=sealed) as client, asking(store) as asker:
        handle = await client.start(work, SECRET)
        async for _ in client.runs.follow_log_lines(handle.run_id):
            break
        with pytest.raises(RunFailed):
            await (await client.start(fail, SECRET)).result()
        for asker.principal, told in (
            (Principal("all", "admin"), "(encrypted with key k9)"),
            (BLIND, MARK),
        ):
            for path in ("", "/events", "/steps", "/timeline", "/streams/progress", "/attach"):
                answer = await asker.ask("GET", f"/v1/runs/{handle.run_id}{path}")
                assert answer.startswith("200 "), (path, answer)
                assert SECRET not in answer
                assert told in answer or path in ("/steps", "/timeline"), (path, answer)
            answer = await asker.ask("GET", "/v1/runs?status=failed")
            assert answer.startswith("200 "), answer  # the error of a run is not to fail the list
            assert "builtins.OSError" in answer
            assert SECRET not in answer
            lines = await asker.ask("GET", f"/v1/runs/{handle.run_id}/logs")
            assert lines.startswith("422 ")
            assert "the lines of this log are encrypted with key k9" in lines
            for tab in TABS:
                page = await asker.ask("GET", f"/runs/{handle.run_id}?tab={tab}")
                assert page.startswith("200 "), (tab, page)
                assert "encrypted with key k9" in page or tab != "lines"
        asker.principal = Principal("all", "admin")
        for query, stays in (("", "stays as it is"), ("?input_of=RUN", "is that of the run")):
            path = f"/runs/{handle.run_id}/fork{query}".replace("RUN", str(handle.run_id))
            page = await asker.ask("GET", path)  # fault: a fork got the text as its input
            assert "encrypted with key k9" not in page
            assert f"it cannot be read here: left empty, it {stays}" in page
    await worker.stop(grace=0)


async def test_a_fork_with_an_empty_form_has_the_input_of_its_run() -> None:
    async with furnished(memory()) as (asker, shop, _):
        asker.principal = BLIND
        path = f"/runs/{shop.runs['broken']}/fork"
        html = await asker.ask("GET", path)
        assert MARK not in html
        assert 'placeholder="hidden from you: left empty, it stays as it is"' in html
        made = str(uuid7())
        answer = await asker.ask("POST", path, form={"run_id": made, "input": ""})
        assert answer.startswith("303 ")
        asker.principal = Principal("all", "admin")
        assert SECRET in await asker.ask("GET", f"/v1/runs/{made}/input")


def shapes(kind: Any, found: dict[type, set[str]]) -> None:
    """Collect the structs that an answer may have, with their fields of text or of any value."""
    for part in typing.get_args(kind):
        shapes(part, found)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
        found[kind] = set()
        for name, hint in typing.get_type_hints(kind).items():
            if {hint, *typing.get_args(hint)} & {str, object, msgspec.Raw, ErrorInfo}:
                found[kind].add(name)
            shapes(hint, found)


# Fields of answers that are named as payloads are, and are none.
PLAIN = {
    ("AlertInfo", "error"): "why an event could not be published",
    ("AlertChange", "error"): "why an event could not be published",
    ("Approval", "payload"): "a title and a form, which codecs leave readable, too",
    ("FailingPut", "error"): "of the store of objects",
    ("Notice", "payload"): "a wake-up, never shown",
    ("Release", "stuck"): "what workers give back, never shown",
    ("SweeperState", "error"): "of the archive",
}
PAYLOADS = {"input", "output", "result", "error", "payload", "heartbeat", "details", "items"}
PAYLOADS |= {"value", "values", "body", "message", "data", "match", "stuck", "slot", "feedback"}


def test_each_field_that_may_have_a_payload_is_hidden() -> None:
    answers: dict[type, set[str]] = {}
    for name in set(dir(Store)) - REFUSED:
        method = getattr(Store, name)
        if callable(method) and not name.startswith("_") and name != "fresh_reads":
            hints = typing.get_type_hints(
                method, vars(__import__(method.__module__, None, None, ["x"]))
            )
            shapes(hints.get("return"), answers)
    assert Notice in answers
    for kind, fields in answers.items():
        hidden = set(FIELDS.get(kind, ())) | ({"details"} if kind.__name__ == "Event" else set())
        plain_here = {field for of, field in PLAIN if of == kind.__name__}
        assert (fields & PAYLOADS) - hidden - plain_here == set(), kind
    for kind, hidden in FIELDS.items():
        assert set(hidden) <= answers[kind], kind


def test_each_detail_of_an_event_that_may_have_a_payload_is_hidden() -> None:
    for each in TYPES.values():
        if each.details is None:
            continue
        found: dict[type, set[str]] = {}
        shapes(each.details, found)
        hints = typing.get_type_hints(each.details)
        raw = {
            name
            for name, hint in hints.items()
            if {hint, *typing.get_args(hint)} & {msgspec.Raw, ErrorInfo}
        }
        assert raw | set(each.payloads) <= set(DETAILS), each.name
