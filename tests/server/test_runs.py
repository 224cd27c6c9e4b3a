"""Start, list, read and control runs over HTTP."""

from __future__ import annotations

import asyncio
import itertools
import json
from uuid import uuid4

import httpx
import pytest

from holdfast.client import Client
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.server.guard import StreamGate
from holdfast.store.port import Store
from holdfast.types import AppInfo, NewRun, NewSignal
from tests.server.shop import HOST, KEY, Api
from tests.server.test_operations import until

RUNS = "/v1/workflows/checkout/runs"


async def test_a_run_is_started_and_read(api: Api) -> None:
    """B9."""
    answer = await api.http.post(RUNS, json={"input": 7, "tags": ["vip"], "priority": 1})
    assert answer.status_code == 201
    started = answer.json()
    assert started["created"] is True
    assert answer.headers["location"] == f"/v1/runs/{started['run_id']}"
    run = await api.ask("GET", answer.headers["location"])
    assert (run["app"], run["name"], run["state"]) == ("shop", "checkout", "queued")
    assert (run["input"], run["tags"], run["priority"]) == (7, ["vip"], 1)
    assert run == await api.ask("GET", f"{RUNS}/{started['run_id']}")


async def test_a_key_starts_one_run(api: Api) -> None:
    """B5: fifty starts at once, with other inputs, as key or as Idempotency-Key, are one run."""

    async def start(number: int) -> tuple[int, str, bool]:
        headers = {"Idempotency-Key": "order-7"} if number % 2 else {}
        body = {"input": number} if number % 2 else {"input": number, "key": "order-7"}
        answer = await api.http.post(RUNS, json=body, headers=headers)
        found = answer.json()
        return answer.status_code, found["run_id"], found["created"]

    answers = await asyncio.gather(*(start(number) for number in range(50)))
    assert len({run_id for _, run_id, _ in answers}) == 1
    assert sorted((status, created) for status, _, created in answers) == [
        *[(200, False)] * 49,
        (201, True),
    ]
    problem = await api.ask(
        "POST", RUNS, {"key": "a"}, status=400, headers={"Idempotency-Key": "b"}
    )
    assert problem["type"] == "urn:holdfast:problem:two-keys"


@pytest.mark.parametrize(
    "path", ["/v1/runs?workflow=chekout", "/v1/runs/count?by=state&workflow=chekout"]
)
async def test_a_list_of_a_workflow_that_nobody_has_had_is_refused(api: Api, path: str) -> None:
    problem = await api.ask("GET", path, status=404)
    assert problem["type"] == "urn:holdfast:problem:unknown-workflow"


async def test_a_list_by_key_has_the_retries_too(api: Api) -> None:
    """C19. All runs that the key means, the newest first."""
    first = (await api.ask("POST", RUNS, {"input": 1, "key": "order-7"}, status=201))["run_id"]
    await api.ask("POST", f"/v1/runs/{first}/terminate")
    again = (await api.ask("POST", f"/v1/runs/{first}/retry", status=201))["run_id"]
    for path in (f"{RUNS}?key=order-7", "/v1/runs?key=order-7&workflow=shop/checkout"):
        found = (await api.ask("GET", path))["runs"]
        assert [run["run_id"] for run in found] == [again, first]


async def test_an_input_that_does_not_fit_is_refused(api: Api) -> None:
    refused = await asyncio.gather(
        *(api.http.post(RUNS, json={"input": "seven" if n == 7 else n}) for n in range(20))
    )
    assert [each.status_code for each in refused] == [422 if n == 7 else 201 for n in range(20)]
    assert refused[7].json()["type"] == "urn:holdfast:problem:invalid-input"
    unknown = await api.ask("POST", "/v1/workflows/chekout/runs", {}, status=404)
    assert unknown["type"] == "urn:holdfast:problem:unknown-workflow"


async def test_runs_are_listed_page_by_page(api: Api, store: Store) -> None:
    """B9: the pages have each run once, newest first."""
    async with Client(store=store) as client:
        others = [await client.start("shop/refund", None, tags=["refund"]) for _ in range(3)]
    mine = [await api.start(number) for number in range(5)]
    seen: list[str] = []
    cursor = ""
    while True:
        page = await api.ask("GET", f"{RUNS}?limit=2{cursor}")
        seen += [run["run_id"] for run in page["runs"]]
        if page["cursor"] is None:
            break
        cursor = f"&cursor={page['cursor']}"
    assert sorted(seen) == sorted(mine)
    assert len((await api.ask("GET", "/v1/runs"))["runs"]) == 8
    tagged = await api.ask("GET", "/v1/runs?tag=refund&status=queued&status=failed&since=2h")
    assert {run["run_id"] for run in tagged["runs"]} == {str(each.run_id) for each in others}
    assert "input" not in tagged["runs"][0]


async def test_runs_are_counted(api: Api) -> None:
    for tags in (["a", "b"], ["b"]):
        body = {"input": 1, "tags": tags}
        await api.ask("POST", "/v1/workflows/count/runs?app=post", body, status=201)
    counted = await api.ask("GET", "/v1/runs/count?by=tag&workflow=post/count&input.x=1")
    assert counted == {"by": "tag", "counts": {}, "searched_until": None}
    counted = await api.ask("GET", "/v1/runs/count?by=tag&workflow=post/count")
    assert counted == {"by": "tag", "counts": {"b": 2, "a": 1}, "searched_until": None}
    counted = await api.ask("GET", "/v1/runs/count?by=colour")  # an attribute that no run has
    assert counted == {"by": "colour", "counts": {}, "searched_until": None}
    problem = await api.ask("GET", "/v1/runs/count?by=a%20b", status=422)
    assert "'a b' is not a name for an attribute" in problem["detail"]
    await api.ask("GET", "/v1/runs/count", status=400)
    await api.ask("GET", "/v1/runs/count?by=tag&limit=1", status=400)


async def test_runs_are_found_by_their_input(api: Api) -> None:
    """B9: `input.<path>=value` is containment; a value is JSON where it can be, else text."""

    async def start(input: object) -> str:
        answer = await api.ask(
            "POST", "/v1/workflows/mail/runs?app=post", {"input": input}, status=201
        )
        return str(answer["run_id"])

    number = await start({"customer": {"id": 7, "name": "ann"}, "tags": ["a"]})
    text = await start({"customer": {"id": "7"}})

    async def found(query: str) -> list[str]:
        page = await api.ask("GET", f"/v1/runs?{query}")
        return [run["run_id"] for run in page["runs"]]

    assert await found("input.customer.id=7") == [number]
    assert await found('input.customer.id="7"') == [text]
    assert await found("input.customer.id=7&input.customer.name=ann") == [number]
    assert await found("input.customer.name=bob") == []
    assert await found('input.tags=["a"]') == [number]
    for wrong in (
        "input.a=1&input.a.b=2",
        "input.a.b=2&input.a=1",
        "input.a=1&input.a=2",
        "input.=1",
        "input.a..b=1",
        "input." + ".".join("abcdefghi") + "=1",
    ):
        await api.ask("GET", f"/v1/runs?{wrong}", status=400)


async def test_parameters_that_cannot_be_are_refused(api: Api) -> None:
    for query in (
        "limit=5&limit=6",
        "limit=0",
        "limit=201",
        "limit=x",
        "status=going",
        "page=2",
        "since=yesterday",
        "parent=7",
        "key=order-7",
        "tag=%00",
        "tag=%ff",
    ):
        problem = await api.ask("GET", f"/v1/runs?{query}", status=400)
        assert problem["detail"], query
    cursor = await api.ask("GET", "/v1/runs?cursor=x", status=422)
    assert "cursor" in cursor["detail"]
    assert (await api.ask("GET", "/v1/runs?" + "tag=x&" * 2000, status=414))["detail"]


async def test_a_run_is_waited_for(api: Api, store: Store) -> None:
    run_id = await api.start()
    began = asyncio.get_running_loop().time()
    run = await api.ask("GET", f"/v1/runs/{run_id}?wait=0.1")
    assert run["status"] == "running"
    assert asyncio.get_running_loop().time() - began >= 0.1
    waiting = asyncio.create_task(api.ask("GET", f"/v1/runs/{run_id}?wait=60"))
    async with Client(store=store) as client:
        await client.runs.terminate(run_id)
    assert (await waiting)["status"] == "terminated"
    answer = await api.ask("POST", f"{RUNS}?wait=0.05", {"input": 1}, status=201)
    assert (answer["status"], answer["input"]) == ("running", 1)


async def test_a_start_that_may_not_wait_starts_nothing(api: Api, server: Server) -> None:
    """Who is told to try again has changed nothing; after that the same call starts the run."""
    server.site.streams = StreamGate(10, 2)
    started = [
        asyncio.create_task(api.http.post(f"{RUNS}?wait=60", json={"input": 1})) for _ in range(5)
    ]
    refused = [await each for each in itertools.islice(asyncio.as_completed(started), 3)]
    assert {each.status_code for each in refused} == {429}
    assert all(each.headers["retry-after"] for each in refused)

    async def started_runs() -> list[dict[str, str]]:
        runs: list[dict[str, str]] = (await api.ask("GET", "/v1/runs"))["runs"]
        return runs if len(runs) >= 2 else []

    runs = await until(started_runs)
    await api.ask("POST", f"/v1/runs/{runs[0]['run_id']}/updates/rename", "x", status=429)
    for each in runs:
        await api.ask("POST", f"/v1/runs/{each['run_id']}/terminate")
    answers = [await each for each in started]
    assert len(await started_runs()) == 2
    assert sorted(each.status_code for each in answers) == [201, 201, 429, 429, 429]
    assert server.site.streams.count == 0
    await api.ask("POST", f"{RUNS}?wait=0.01", {"input": 1}, status=201)


async def test_a_backend_with_one_token_waits_for_many_runs(api: Api) -> None:
    started = [
        asyncio.create_task(api.http.post(f"{RUNS}?wait=60", json={"input": 1})) for _ in range(60)
    ]

    async def all_open() -> bool:
        return len((await api.ask("GET", "/v1/runs?limit=200&status=queued"))["runs"]) == 60

    await until(all_open)
    for each in (await api.ask("GET", "/v1/runs?limit=200"))["runs"]:
        await api.ask("POST", f"/v1/runs/{each['run_id']}/terminate")
    answers = [await each for each in started]
    assert [each.status_code for each in answers] == [201] * 60
    assert {each.json()["status"] for each in answers} == {"terminated"}


async def test_a_key_in_a_header_is_read_as_utf_8(api: Api) -> None:
    """Header and body name the same run; bytes that are not UTF-8 are refused."""
    key = "Größe 7, 漢字"
    once = await api.http.post(RUNS, json={"input": 1}, headers={b"Idempotency-Key": key.encode()})
    again = await api.ask("POST", RUNS, {"key": key, "input": 1})
    assert again["run_id"] == once.json()["run_id"]
    assert (await api.ask("GET", f"/v1/runs/{again['run_id']}"))["key"] == key
    latin = await api.http.post(
        RUNS, json={"input": 1}, headers={b"Idempotency-Key": "Größe".encode("latin-1")}
    )
    assert (latin.status_code, latin.json()["type"]) == (400, "urn:holdfast:problem:bad-header")
    assert len((await api.ask("GET", "/v1/runs"))["runs"]) == 1


async def test_a_run_is_cancelled_paused_and_terminated(api: Api) -> None:
    run_id = await api.start()
    run = f"/v1/runs/{run_id}"
    assert await api.ask("POST", f"{run}/pause", {"reason": "closed"}) == {"changed": True}
    assert await api.ask("POST", f"{run}/pause") == {"changed": False}
    assert (await api.ask("GET", run))["state"] == "paused"
    assert await api.ask("POST", f"{run}/resume") == {"changed": True}
    assert await api.ask("DELETE", f"{RUNS}/{run_id}?reason=changed") == {"changed": True}
    assert (await api.ask("GET", run))["status"] == "cancelled"
    assert await api.ask("POST", f"{run}/cancel") == {"changed": False}
    assert await api.ask("POST", f"{run}/terminate") == {"changed": False}
    log = (await api.ask("GET", f"{run}/events"))["events"]
    told = {each["type"]: each["details"] for each in log}
    assert told["WorkflowPaused"] == {"reason": "closed", "by": "key"}
    assert told["WorkflowResumed"] == {"by": "key"}
    assert told["WorkflowCancelRequested"] == {"reason": "changed", "by": "key"}
    spans = (await api.ask("GET", f"{run}/timeline"))["spans"]
    assert {each["note"] for each in spans} >= {"closed, by key", "changed, by key"}
    ended = await api.ask("POST", f"{run}/pause", status=409)
    assert ended["type"] == "urn:holdfast:problem:run-ended"


async def test_a_signal_is_delivered_once(api: Api, store: Store) -> None:
    run_id = await api.start()
    path, once = f"/v1/runs/{run_id}/signals/packed", {"Idempotency-Key": "parcel-9"}
    assert await api.ask("POST", path, {"boxes": 2}, headers=once) == {"changed": True}
    assert await api.ask("POST", path, {"boxes": 2}, headers=once) == {"changed": False}
    assert await api.ask("POST", f"{RUNS}/{run_id}/signals/packed") == {"changed": True}
    async with Client(store=store) as client:
        sent = [each.event for each in await client.runs.log(run_id)]
        assert [each.type for each in sent].count("SignalReceived") == 2
        await client.runs.terminate(run_id)
    ended = await api.ask("POST", path, 1, status=409)
    assert ended["run_id"] == run_id


async def test_a_run_is_not_found_elsewhere(api: Api) -> None:
    run_id = await api.start()
    nested = f"/v1/workflows/refund/runs/{run_id}"
    for method, path in (
        ("GET", nested),
        ("DELETE", nested),
        ("POST", f"{nested}/signals/a"),
        ("GET", f"/v1/runs/{uuid4()}"),
        ("DELETE", f"/v1/runs/{uuid4()}"),
        ("POST", f"/v1/runs/{uuid4()}/signals/a"),
        ("POST", f"/v1/runs/{uuid4()}/terminate"),
    ):
        problem = await api.ask(method, path, status=404)
        assert problem["type"] == "urn:holdfast:problem:run-not-found"
    assert (await api.ask("GET", f"/v1/runs/{run_id}"))["state"] == "queued"
    wrong = await api.ask("GET", "/v1/workflows/checkout/runs/order-7/steps", status=400)
    assert wrong["detail"].endswith("found with GET /v1/workflows/NAME/runs?key=KEY")
    await api.ask("GET", "/v1/runs/7", status=400)
    await api.ask("POST", f"/v1/runs/{run_id}/signals/a%00b", status=400)
    await api.ask("POST", f"/v1/runs/{run_id}/signals/a%2fb", status=404)


@pytest.mark.usefixtures("worker")
async def test_a_server_without_the_code_knows_inputs_from_workers(store: Store) -> None:
    """The form, the list and the workflow itself tell what its worker has said."""
    async with Server(store=store, auth=KeyAccess(KEY), hosts=[HOST]) as bare:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(bare), base_url=f"http://{HOST}", headers=headers
        ) as http:
            api = Api(http)
            found = await api.ask("GET", "/v1/workflows/desk")
            assert found["input_schema"] == {"type": "integer"}
            assert found["about"].startswith("Charge, ask for an approval")
            listed = (await api.ask("GET", "/v1/workflows"))["workflows"]
            schemas = {each["name"]: each["input_schema"] for each in listed}
            assert schemas["shop/analyze"] == {"type": "string"}  # a flow
            assert schemas["shop/desk"] == {"type": "integer"}
            await http.get(f"/login?key={KEY}&next=/runs")
            form = (await http.get("/workflow?name=shop/desk")).text
            assert "Charge, ask for an approval" in form


async def test_a_start_for_an_app_that_no_worker_has_had_is_answered_with_a_warning(
    api: Api, store: Store
) -> None:
    await store.sign_on_app(AppInfo(app="shop", workflows=("checkout",)))
    started = await api.ask("POST", f"{RUNS}?app=shpo", {"input": 7}, status=201)
    assert "app shpo has never had a worker with a workflow 'checkout'" in started["warning"]
    assert "did you mean shop/checkout?" in started["warning"]
    started = await api.ask("POST", f"{RUNS}?app=shop", {"input": 7}, status=201)
    assert started["warning"] is None


NUMBERS = f'{{"a": [-1e400, {"9" * 5_000}, 1.50]}}'


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    "path",
    [
        *("", "/why", "/values", "/timeline", "/timeline?folded=false", "/steps", "/events"),
        *("/children", "/input", "list", "by name", "recent"),
    ],
)
async def test_numbers_beyond_floats_are_answered_as_valid_json(
    api: Api, store: Store, path: str
) -> None:
    """C21. Programs that speak SQL may send them, in an input and in a signal nobody reads."""
    run_id = uuid4()
    await store.start_runs([NewRun(run_id=run_id, name="shop/checkout", input=NUMBERS)])
    await store.signal_runs([NewSignal(run_id, "go", NUMBERS, "one")])
    paths = {"list": "/v1/runs", "by name": RUNS, "recent": "/v1/events?since=1h"}
    answer = await api.http.get(paths.get(path, f"/v1/runs/{run_id}{path}"))
    assert answer.status_code == 200, answer.text
    json.loads(answer.text, parse_constant=pytest.fail, parse_int=str)
    if path in ("", "/input", "/events", "/timeline", "/timeline?folded=false", "recent"):
        assert "1e400" in answer.text
