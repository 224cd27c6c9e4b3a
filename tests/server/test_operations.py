"""Operations besides those of runs: what each answers, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from holdfast.server.api.table import OPERATIONS
from holdfast.server.pages.graph import draw_flow
from holdfast.store.port import Store
from holdfast.types import AlertRule, NewRun, StepShape
from tests.server.shop import Api, tokens

LIMIT_SECONDS = 30.0


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    """Look until there is something to see."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while not (found := await look()):
            await asyncio.sleep(0.02)
        return found


async def start(api: Api, workflow: str, input: object) -> str:
    answer = await api.ask("POST", f"/v1/workflows/{workflow}/runs", {"input": input}, status=201)
    return str(answer["run_id"])


@pytest.mark.usefixtures("worker")
async def test_a_run_is_led_to_its_end(api: Api) -> None:
    """Updates, an approval, a child, a token: all over HTTP, then all that can be read of it."""
    tokens.clear()
    run_id = await start(api, "desk", 7)
    run = f"/v1/runs/{run_id}"

    async def approvals() -> Any:
        return (await api.ask("GET", f"/v1/approvals?run={run_id}"))["approvals"]

    [approval] = await until(approvals)
    assert (approval["title"], approval["workflow"]) == ("Refund?", "shop/desk")
    why = await api.ask("GET", f"{run}/why")
    assert (why["state"], {each["do"] for each in why["actions"]}) == (
        "waiting",
        {"update", "decide"},
    )

    once = {"Idempotency-Key": "u-1"}
    answer = await api.ask("POST", f"{run}/updates/rename", "ann", headers=once)
    assert answer == {"update_id": "u-1", "result": "Ann"}
    assert await api.ask("POST", f"{run}/updates/rename", "ann", headers=once) == answer
    assert await api.ask("GET", f"{run}/updates/rename?id=u-1") == answer
    rejected = await api.ask("POST", f"{run}/updates/rename", "", status=409)
    assert rejected["error"]["message"] == "a name has letters"
    assert await api.ask("GET", f"{run}/values") == {"values": {"name": "ann"}}
    late = await api.ask("GET", f"{run}/updates/rename?id=u-2", status=202)
    assert late == {"update_id": "u-2"}

    decide = {"key": approval["key"], "approved": True}
    await api.ask("POST", f"{run}/approvals", decide, status=422)
    wrong = {**decide, "values": {"discount": "much"}}
    assert "discount" in (await api.ask("POST", f"{run}/approvals", wrong, status=422))["detail"]
    right = {**decide, "values": {"discount": 5}}
    twice = {"Idempotency-Key": "d-1"}
    assert await api.ask("POST", f"{run}/approvals", right, headers=twice) == {"changed": True}
    assert await api.ask("POST", f"{run}/approvals", right, headers=twice) == {"changed": False}
    other = {"key": approval["key"], "approved": False, "by": "bob"}
    decided = await api.ask("POST", f"{run}/approvals", other, status=409)
    assert (decided["approved"], decided["by"]) == (True, "key")
    missing = {"key": "nothing", "approved": True}
    await api.ask("POST", f"{run}/approvals", missing, status=404)

    async def token() -> str | None:
        return tokens.get("text 7")

    complete = {"token": await until(token), "result": "fine"}
    assert await api.ask("POST", "/v1/activities/complete", complete) == {"changed": True}
    await api.ask("POST", "/v1/activities/complete", complete, status=410)
    fail = {"token": complete["token"], "error": "ill"}
    await api.ask("POST", "/v1/activities/fail", fail, status=410)

    ended = await api.ask("GET", f"{run}?wait=30")
    assert (ended["status"], ended["output"]) == ("completed", "7 fine")
    steps = {each["key"]: each for each in (await api.ask("GET", f"{run}/steps"))["steps"]}
    assert steps["charge"]["result"] == {"paid": 7}
    assert {each["outcome"] for each in steps.values() if each["kind"] != "timer"} == {
        "done",
        "failed",  # the update that was rejected
    }
    assert {"step", "approval", "activity", "child", "update"} <= {
        each["kind"] for each in steps.values()
    }
    nested = await api.ask("GET", f"/v1/workflows/desk/runs/{run_id}/steps")
    assert len(nested["steps"]) == len(steps)
    timeline = await api.ask("GET", f"{run}/timeline")
    for whole, name in ((nested, "steps"), (timeline, "spans")):
        path = f"{run}/{'steps' if name == 'steps' else 'timeline'}"
        found, after = list[Any](), -1
        while after is not None:
            page = await api.ask("GET", f"{path}?limit=2&after={after}")
            assert len(page[name]) == 2 or page["next"] is None
            found, after = found + page[name], page["next"]
        assert found == whole[name]
        assert whole["next"] is None
        end = await api.ask("GET", f"{path}?after=1000")
        assert (end[name], end["next"]) == ([], None)
    assert timeline["spans"][0]["began_at"] >= timeline["began_at"]
    children = await api.ask("GET", f"{run}/children")
    assert [each["run"]["name"] for each in children["shown"]] == ["checkout"]
    output = await api.http.get(f"{run}/output")
    assert output.json() == "7 fine"
    assert "attachment" in output.headers["content-disposition"]
    assert (await api.http.get(f"{run}/input")).json() == 7
    assert (await api.ask("GET", f"{run}/why"))["state"] == "completed"
    await api.ask("GET", f"{run}/graph", status=404)
    await api.ask("POST", f"{run}/updates/rename", "x", status=409)
    await api.ask("GET", f"{run}/updates/rename?id=u-9", status=409)


@pytest.mark.usefixtures("worker")
async def test_a_log_is_read_page_by_page(api: Api) -> None:
    run_id = await start(api, "desk", 1)

    async def waits() -> bool:
        run = await api.ask("GET", f"/v1/runs/{run_id}")
        return bool(run["state"] == "waiting")

    await until(waits)
    events: list[dict[str, Any]] = []
    after = -1
    while after is not None:
        page = await api.ask("GET", f"/v1/runs/{run_id}/events?after={after}&limit=2&clip=3")
        events += page["events"]
        after = page["next"]
    assert [each["idx"] for each in events] == list(range(len(events)))
    assert events[0]["type"] == "WorkflowStarted"
    clipped = [each for each in events if each["type"] == "StepCompleted"]
    assert clipped[0]["details"] is None
    assert clipped[0]["details_bytes"] > 3
    recent = await api.ask("GET", "/v1/events?since=1h")
    assert {each["run_id"] for each in recent["events"]} == {run_id}
    missing = uuid4()
    for part in ("events", "steps", "timeline", "why", "children", "values", "input", "output"):
        await api.ask("GET", f"/v1/runs/{missing}/{part}", status=404)


@pytest.mark.usefixtures("worker")
async def test_a_failed_run_is_retried_and_forked(api: Api) -> None:
    run_id = await start(api, "desk", -1)
    failed = await api.ask("GET", f"/v1/runs/{run_id}?wait=30")
    assert failed["status"] == "failed"
    assert "a negative amount" in failed["error"]["message"]
    [step] = (await api.ask("GET", f"/v1/runs/{run_id}/steps"))["steps"]
    assert (step["outcome"], step["attempts"], len(step["failures"])) == ("failed", 2, 2)
    [head] = (await api.ask("GET", "/v1/runs?status=failed"))["runs"]
    assert set(head["error"]) == {"kind", "message"}

    retried = await api.ask("POST", f"/v1/runs/{run_id}/retry", status=201)
    assert await api.ask("POST", f"/v1/runs/{run_id}/retry") == {
        "run_id": retried["run_id"],
        "created": False,
    }
    once, fork = {"Idempotency-Key": "f-1"}, f"/v1/runs/{run_id}/fork"
    forked = await api.ask("POST", fork, {"index": 1, "input": 3}, headers=once, status=201)
    again = await api.ask("POST", fork, {"index": 1, "input": 3}, headers=once)
    assert again == {"run_id": forked["run_id"], "created": False}
    assert (await api.ask("GET", f"/v1/runs/{forked['run_id']}"))["input"] == 3
    refused = await api.ask("POST", fork, {"step": "nothing"}, status=409)
    assert refused["type"] == "urn:holdfast:problem:fork-refused"
    await api.ask("POST", f"/v1/runs/{forked['run_id']}/retry", status=409)


@pytest.mark.usefixtures("worker")
async def test_flows_are_read(api: Api, store: Store) -> None:
    run_id = await start(api, "analyze", "a bee")
    assert (await api.ask("GET", f"/v1/runs/{run_id}?wait=30"))["output"] == {"size": [1, 3]}
    [words, size] = (await api.ask("GET", f"/v1/runs/{run_id}/steps"))["steps"]
    assert (words["result"], size["result"], size["outcome"]) == (["a", "bee"], [1, 3], "completed")
    graph = await api.ask("GET", f"/v1/runs/{run_id}/graph")
    assert [(each["slug"], each["deps"]) for each in graph["steps"]] == [
        ("words", []),
        ("size", ["words"]),
    ]
    shape = await store.get_flow("shop/analyze")
    assert shape is not None
    new = msgspec.structs.replace(shape, steps=(StepShape(slug="other"),))
    await store.ensure_flow(new, "new", replace=True)
    assert [
        (each["slug"], each["deps"])
        for each in (await api.ask("GET", f"/v1/runs/{run_id}/graph"))["steps"]
    ] == [("words", []), ("size", ["words"])]
    drawn = await draw_flow(store, (await store.get_runs([UUID(run_id)]))[UUID(run_id)])
    assert drawn is not None
    assert ([each.step.step for each in drawn.nodes], len(drawn.edges)) == (["words", "size"], 1)
    await store.ensure_flow(shape, "old", replace=True)
    [flow] = (await api.ask("GET", "/v1/flows"))["flows"]
    assert (flow["name"], flow["steps"]) == ("shop/analyze", 2)
    shape = await api.ask("GET", "/v1/flows/analyze?app=shop&version=1")
    assert shape["name"] == "shop/analyze"
    await api.ask("GET", "/v1/flows/nothing", status=404)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("replaced", [False, True])
async def test_a_failed_element_of_a_map_is_named_with_its_value(
    api: Api, store: Store, replaced: bool
) -> None:
    """By the shape that the run had."""
    run_id = await start(api, "analyze", "a bee ? sea")
    run = await api.ask("GET", f"/v1/runs/{run_id}?wait=30")
    assert run["error"]["message"] == "step size:2 failed: ValueError: it is not a word"
    if replaced:
        shape = await store.get_flow("shop/analyze")
        assert shape is not None
        new = msgspec.structs.replace(shape, steps=(StepShape(slug="size"),))
        await store.ensure_flow(new, "new", replace=True)
    why = await api.ask("GET", f"/v1/runs/{run_id}/why")
    assert 'it is element 2 of words, counted from 0: "?"' in str(why["details"])


@pytest.mark.usefixtures("worker")
async def test_what_workers_serve(api: Api) -> None:
    """B9: workflows with counts by status."""
    run_id = await start(api, "checkout", 1)
    await api.ask("GET", f"/v1/runs/{run_id}?wait=30")
    found = {each["name"]: each for each in (await api.ask("GET", "/v1/workflows"))["workflows"]}
    assert found["shop/checkout"]["counts"] == {"completed": 1}
    assert found["shop/checkout"]["workers"] == 1
    assert await api.ask("GET", "/v1/workflows/checkout") == found["shop/checkout"]
    await api.ask("GET", "/v1/workflows/nothing", status=404)
    [queue] = (await api.ask("GET", "/v1/queues"))["served"]
    assert (queue["name"], queue["workers"], queue["paused"]) == ("default", 1, False)
    [signed_on] = (await api.ask("GET", "/v1/workers"))["workers"]
    assert (signed_on["silent"], signed_on["hints"]) == (False, None)

    for what in ("queues/default", "workflows/checkout"):
        path, reason = f"/v1/{what}", {"reason": "closed"}
        assert await api.ask("POST", f"{path}/pause", reason) == {"changed": True}
        assert await api.ask("POST", f"{path}/pause", reason) == {"changed": False}
        assert await api.ask("POST", f"{path}/resume") == {"changed": True}
    await api.ask("POST", "/v1/queues/a%20b/pause", status=400)


async def test_a_used_key_does_what_the_start_says(api: Api) -> None:
    """The Idempotency-Key is the key."""
    path, headers = "/v1/workflows/checkout/runs", {"Idempotency-Key": "again"}
    first = await api.ask("POST", path, {"input": 7, "delay": "1d"}, status=201, headers=headers)
    await api.ask("POST", f"/v1/runs/{first['run_id']}/terminate")
    asked = {"input": 7, "delay": "1d", "if_ended": "refuse"}
    await api.ask("POST", path, asked, status=409, headers=headers)
    asked["if_ended"] = "start"
    again = await api.ask("POST", path, asked, status=201, headers=headers)
    assert again["run_id"] != first["run_id"]
    same = await api.ask("POST", path, asked, headers=headers)
    assert (same["run_id"], same["created"]) == (again["run_id"], False)
    await api.ask("POST", path, {**asked, "if_ended": "x"}, status=422, headers=headers)
    await api.ask("POST", path, asked, status=422)


async def test_a_run_is_rescheduled(api: Api) -> None:
    """One, and all of a filter; what cannot be meant is refused."""
    new = {"input": 7, "delay": "1h"}
    run = (await api.ask("POST", "/v1/workflows/checkout/runs", new, status=201))["run_id"]
    path, change = f"/v1/runs/{run}/reschedule", {"queue": "night", "timeout": 60}
    assert await api.ask("POST", path, {**change, "reason": "slow"}) == {"changed": True}
    assert (await api.ask("GET", f"/v1/runs/{run}"))["queue"] == "night"
    for wrong, status in (({}, 422), ({"queue": "a b"}, 422), ({"delay": []}, 422)):
        await api.ask("POST", path, wrong, status=status)
    bulk = {"do": "reschedule", "where": {}, "dry_run": False}
    await api.ask("POST", "/v1/bulk", bulk, status=422)
    await api.ask("POST", "/v1/bulk", {**bulk, "change": {}}, status=422)
    await api.ask("POST", "/v1/bulk", {**bulk, "do": "pause", "change": change}, status=422)


async def test_schedules_are_kept(api: Api) -> None:
    new = {"name": "nightly", "workflow": "checkout", "cron": "0 3 * * *", "input": 7}
    made = await api.ask("POST", "/v1/schedules", new, status=201)
    assert (made["name"], made["when"]["cron"]) == ("shop/nightly", "0 3 * * *")
    assert made["target"]["input"] == 7
    await api.ask("POST", "/v1/schedules", new, status=409)
    await api.ask("POST", "/v1/schedules", {**new, "name": "b", "cron": "x"}, status=422)
    path = "/v1/schedules/nightly"
    assert len((await api.ask("GET", path))["next_ticks"]) == 5
    assert [each["name"] for each in (await api.ask("GET", "/v1/schedules"))["schedules"]] == [
        "shop/nightly"
    ]
    assert await api.ask("POST", f"{path}/pause", {"reason": "x"}) == {"changed": True}
    assert await api.ask("POST", f"{path}/resume") == {"changed": True}
    at = {"at": "2026-01-01T03:00:00Z"}
    tick = await api.ask("POST", f"{path}/trigger", at)
    assert tick["outcome"] == "started"
    assert (await api.ask("POST", f"{path}/trigger", at))["run_id"] == tick["run_id"]
    assert len((await api.ask("GET", f"{path}/ticks"))["ticks"]) == 1
    days = {"start": "2026-01-02T00:00:00Z", "end": "2026-01-04T00:00:00Z"}
    once = {"Idempotency-Key": "b-1"}
    assert await api.ask("POST", f"{path}/backfill", days, headers=once) == {"changed": True}
    assert await api.ask("POST", f"{path}/backfill", days, headers=once) == {"changed": False}
    assert await api.ask("DELETE", path) == {"changed": True}
    for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("GET", "/ticks")):
        await api.ask(method, f"{path}{rest}", status=404)


async def test_schedules_send_to_topics_and_queues(api: Api) -> None:
    """T6. Each tick publishes or sends."""
    new = {"name": "clock", "topic": "clock.hour", "cron": "@hourly", "input": {"n": 1}}
    made = await api.ask("POST", "/v1/schedules", new, status=201)
    assert (made["name"], made["policy"]["overlap"]) == ("shop/clock", "allow")
    target = made["target"]
    assert (target["kind"], target["name"], target["input"]) == ("topic", "clock.hour", {"n": 1})
    tick = await api.ask("POST", "/v1/schedules/clock/trigger")
    assert (tick["outcome"], tick["reached"], tick["message_id"]) == ("sent", 0, None)
    polls = {"name": "poll", "message_queue": "polls", "every": "15m", "priority": 1}
    await api.ask("POST", "/v1/schedules", polls, status=404)
    await api.ask("POST", "/v1/message-queues", {"name": "polls", "priorities": True}, status=201)
    made = await api.ask("POST", "/v1/schedules", {**polls, "headers": {"a": "b"}}, status=201)
    assert (made["target"]["priority"], made["target"]["headers"]) == (1, {"a": "b"})
    tick = await api.ask("POST", "/v1/schedules/poll/trigger")
    [message] = (await api.ask("POST", "/v1/message-queues/polls/receive"))["messages"]
    assert tick["message_id"] == message["message_id"]
    for wrong in ({"overlap": "skip"}, {"jitter": "1m"}, {"workflow": "checkout"}, {"queue": "x"}):
        refused = await api.ask("POST", "/v1/schedules", {**new, "name": "b", **wrong}, status=422)
        assert "b: " in refused["detail"]
    await api.ask("POST", "/v1/schedules/clock/trigger", {"overlap": "skip"}, status=422)


async def test_limits_of_a_queue_hold_for_its_messages(api: Api) -> None:
    queue = "/v1/message-queues/parcels"
    await api.ask("POST", "/v1/message-queues", {"name": "parcels"}, status=201)
    limit = {"scope": "queue", "name": "parcels", "kind": "concurrency", "key": "input.of"}
    for most in (0, -1, "one"):
        await api.ask("PUT", "/v1/limits", {**limit, "most": most}, status=422)
    assert await api.ask("PUT", "/v1/limits", {**limit, "most": 1}) == {"changed": True}
    for of in ("ann", "ann", "bob"):
        await api.ask("POST", f"{queue}/messages", {"payload": {"of": of}}, status=201)
    found = (await api.ask("POST", f"{queue}/receive", {"limit": 9}))["messages"]
    assert [each["payload"]["of"] for each in found] == ["ann", "bob"]
    [shown] = (await api.ask("GET", "/v1/limits"))["limits"]
    assert (shown["held"], shown["full_keys"], shown["waiting"]) == (2, 2, 1)
    await api.ask("POST", f"{queue}/ack", {"receipts": [found[0]["receipt"]]})
    assert len((await api.ask("POST", f"{queue}/receive", {"limit": 9}))["messages"]) == 1


async def test_limits_are_set_and_removed(api: Api) -> None:
    limit = {"scope": "queue", "name": "mail", "kind": "rate", "most": 10, "per": "1m"}
    assert await api.ask("PUT", "/v1/limits", limit) == {"changed": True}
    assert await api.ask("PUT", "/v1/limits", limit) == {"changed": False}
    [found] = (await api.ask("GET", "/v1/limits"))["limits"]
    assert found["rule"]["period_seconds"] == 60
    wrong = await api.ask("PUT", "/v1/limits", {**limit, "per": None}, status=422)
    assert "most and per" in wrong["detail"]
    which = "scope=queue&name=mail&kind=rate"
    assert await api.ask("DELETE", f"/v1/limits?{which}") == {"changed": True}
    assert await api.ask("DELETE", f"/v1/limits?{which}") == {"changed": False}
    await api.ask("DELETE", "/v1/limits?scope=queue", status=400)
    units = {**limit, "kind": "units", "units": "input.tokens"}
    assert await api.ask("PUT", "/v1/limits", units) == {"changed": True}
    [found] = (await api.ask("GET", "/v1/limits"))["limits"]
    assert (found["rule"]["units"], found["used"]) == ("input.tokens", 0)
    wrong = await api.ask("PUT", "/v1/limits", {**units, "units": None}, status=422)
    assert "most, per and units" in wrong["detail"]
    which = "scope=queue&name=mail&kind=units"
    assert await api.ask("DELETE", f"/v1/limits?{which}") == {"changed": True}


async def test_alerts_are_listed(api: Api, store: Store) -> None:
    assert await api.ask("GET", "/v1/alerts") == {"alerts": []}
    rule = AlertRule(name="late", kind="backlog", subject="mail", threshold=300, topic="ops")
    await store.declare_alerts("shop", [rule])
    await store.look_at_alerts()
    [found] = (await api.ask("GET", "/v1/alerts"))["alerts"]
    assert (found["app"], found["rule"]["name"], found["is_active"]) == ("shop", "late", False)
    assert (found["value"], found["changed_at"]) == (0, None)
    assert found["looked_at"].endswith("Z")


async def test_one_message_is_read_changed_and_cancelled(api: Api) -> None:
    await api.ask("POST", "/v1/message-queues", {"name": "parcels"}, status=201)
    queue = "/v1/message-queues/parcels"
    sent = await api.ask("POST", f"{queue}/messages", {"payload": 7, "delay": "1h"}, status=201)
    message = f"{queue}/messages/{sent['message_id']}"
    assert (await api.ask("GET", message))["payload"] == 7
    assert await api.ask("PATCH", message, {"payload": None}) == {"changed": True}
    found = await api.ask("GET", message)
    assert (found["payload"], found["in_flight"], found["attempts"]) == (None, False, 0)
    assert found["visible_at"] > found["sent_at"]
    past = {"at": "2020-01-01T00:00:00Z"}
    assert await api.ask("PATCH", message, past) == {"changed": True}
    await api.ask("POST", f"{queue}/receive")
    await api.ask("DELETE", message, status=409)
    await api.ask("PATCH", message, {"payload": 1}, status=409)
    await api.ask("PATCH", message, {}, status=422)
    await api.ask("PATCH", message, {"at": "2020-01-01T00:00:00"}, status=422)
    await api.ask("GET", f"{queue}/messages/x", status=422)
    await api.ask("GET", f"{queue}/messages/99", status=404)
    assert await api.ask("DELETE", f"{queue}/messages/99") == {"changed": False}
    sent = await api.ask("POST", f"{queue}/messages", {"payload": 9}, status=201)
    [taken] = (await api.ask("POST", f"{queue}/receive"))["messages"]
    await api.ask("POST", f"{queue}/nack", {"receipts": [taken["receipt"]], "error": "late"})
    [failure] = (await api.ask("GET", f"{queue}/messages/{sent['message_id']}"))["failures"]
    assert failure["error"] == "late"


async def test_builds_are_listed_promoted_ramped_and_left(api: Api, store: Store) -> None:
    for build in ("b1", "b2"):
        await store.declare_build("shop", build, ["shop/buy@1"])
    run_id = UUID(int=1)
    await store.start_runs([NewRun(run_id=run_id, name="shop/buy")])
    found = (await api.ask("GET", "/v1/builds?app=shop"))["builds"]
    states = {each["build"]: (each["is_current"], each["open_runs"]) for each in found}
    assert states == {"b1": (True, 1), "b2": (False, 0)}
    assert [each["safe_to_stop"] for each in found if each["build"] == "b2"] == [True]
    assert (await api.ask("GET", f"/v1/runs/{run_id}"))["build"] == "b1"
    for path in ("/v1/runs", "/v1/workflows/buy/runs"):
        for build, expected in (("b1", [str(run_id)]), ("b2", [])):
            page = await api.ask("GET", f"{path}?build={build}")
            assert [each["run_id"] for each in page["runs"]] == expected
    assert (await api.ask("GET", "/v1/runs/count?by=state&build=b1"))["counts"] == {"queued": 1}
    refused = await api.ask("GET", "/v1/runs?build=b%201", status=422)
    assert "'b 1' is not a name for a build" in refused["detail"]
    await api.ask("GET", "/v1/runs?build=", status=400)
    body = {"do": "pause", "where": {"build": "b2"}, "dry_run": True}
    answer = await api.http.post("/v1/bulk", json=body)
    assert '"matched":0' in answer.text
    ramp = {"build": "b2", "percent": 10}
    assert await api.ask("POST", "/v1/builds/ramp", ramp) == {"changed": True}
    await api.ask("POST", "/v1/builds/ramp", {"build": "b2", "percent": 101}, status=422)
    for changed in (True, False):
        answer = await api.ask("POST", "/v1/builds/promote", {"build": "b2"})
        assert answer == {"changed": changed}
    unknown = await api.ask("POST", "/v1/builds/promote", {"build": "b9"}, status=404)
    assert "known are b2, b1" in unknown["detail"] or "known are b1, b2" in unknown["detail"]
    left = await api.ask("POST", "/v1/builds/roll-back", {"app": "shop"})
    assert left == {"outcome": "changed", "former": "b2", "current": "b1"}
    move = {"run_ids": [str(run_id)], "build": "b2"}
    moved = await api.ask("POST", "/v1/builds/move", move)
    assert moved == {"outcomes": {str(run_id): "moved"}}


async def test_messages_are_sent_received_and_acknowledged(api: Api) -> None:
    new = {"name": "parcels", "visibility": "1m", "max_receives": 2}
    assert await api.ask("POST", "/v1/message-queues", new, status=201) == {"changed": True}
    assert await api.ask("POST", "/v1/message-queues", new) == {"changed": False}
    await api.ask("POST", "/v1/message-queues", {**new, "visibility": 5}, status=409)
    queue = "/v1/message-queues/parcels"
    once = {"Idempotency-Key": "m-1"}
    sent = await api.ask("POST", f"{queue}/messages", {"payload": 7}, headers=once, status=201)
    again = await api.ask("POST", f"{queue}/messages", {"payload": 7}, headers=once, status=201)
    assert again == sent
    [message] = (await api.ask("POST", f"{queue}/receive", {"wait": 5}))["messages"]
    assert (message["payload"], message["attempts"]) == (7, 1)
    receipts = {"receipts": [message["receipt"]]}
    yes, no = {"in_flight": [True]}, {"in_flight": [False]}
    assert await api.ask("POST", f"{queue}/extend", {**receipts, "visibility": "2m"}) == yes
    assert await api.ask("POST", f"{queue}/nack", {**receipts, "error": "late"}) == yes
    [message] = (await api.ask("POST", f"{queue}/receive"))["messages"]
    assert (message["attempts"], message["error"]) == (2, "late")
    receipts = {"receipts": [message["receipt"]]}
    assert await api.ask("POST", f"{queue}/ack", receipts) == yes
    assert await api.ask("POST", f"{queue}/ack", receipts) == no
    assert await api.ask("POST", f"{queue}/receive") == {"messages": []}
    for wrong in ("x", "1.2.3", f"0.{uuid4()}.1", f"1.{uuid4()}.1.1"):
        await api.ask("POST", f"{queue}/ack", {"receipts": [wrong]}, status=422)
    await api.ask("POST", f"{queue}/messages", {"payload": 8}, status=201)
    [popped] = (await api.ask("POST", f"{queue}/pop"))["messages"]
    assert popped["payload"] == 8
    assert await api.ask("POST", f"{queue}/pop", {"limit": 5}) == {"messages": []}
    await api.ask("POST", f"{queue}/messages", {"payload": 9}, status=201)
    assert await api.ask("POST", f"{queue}/purge") == {"deleted": 1}
    names = (await api.ask("GET", "/v1/message-queues"))["queues"]
    assert {each["settings"]["name"] for each in names} == {"parcels", "parcels.dead"}
    assert await api.ask("DELETE", queue) == {"changed": True}
    await api.ask("POST", f"{queue}/messages", {}, status=404)
    await api.ask("POST", f"{queue}/receive", status=404)


async def test_dead_letters_are_moved_back(api: Api) -> None:
    await api.ask("POST", "/v1/message-queues", {"name": "parcels", "max_receives": 1}, status=201)
    queue = "/v1/message-queues/parcels"
    for payload in (7, 8):
        await api.ask("POST", f"{queue}/messages", {"payload": payload}, status=201)
    received = (await api.ask("POST", f"{queue}/receive", {"limit": 2}))["messages"]
    await api.ask("POST", f"{queue}/nack", {"receipts": [each["receipt"] for each in received]})
    only = {"message_ids": [received[1]["message_id"]]}
    assert await api.ask("POST", f"{queue}/redrive", only) == {"moved": 1}
    assert await api.ask("POST", f"{queue}/redrive") == {"moved": 1}
    assert await api.ask("POST", f"{queue}/redrive", {}) == {"moved": 0}
    again = (await api.ask("POST", f"{queue}/receive", {"limit": 2}))["messages"]
    assert [each["attempts"] for each in again] == [1, 1]
    wrong_ids: tuple[list[object], ...] = ([], [0], [True], ["1"], [10**18])
    for wrong in wrong_ids:
        await api.ask("POST", f"{queue}/redrive", {"message_ids": wrong}, status=422)
    await api.ask("POST", f"{queue}.dead/redrive", status=422)
    await api.ask("POST", "/v1/message-queues/no/redrive", status=404)


async def test_an_event_is_published_once(api: Api) -> None:
    event, once = {"topic": "invoices.17.paid", "payload": 17}, {"Idempotency-Key": "e-1"}
    published = await api.ask("POST", "/v1/topics/publish", event, headers=once)
    assert (published["event_id"], published["is_new"]) == ("e-1", True)
    again = await api.ask("POST", "/v1/topics/publish", event, headers=once)
    assert again["is_new"] is False
    await api.ask("POST", "/v1/topics/publish", {"topic": "a b"}, status=422)


async def test_the_description_says_which_parameters_must_be_given(api: Api) -> None:
    """Each that the server refuses to do without, and no other."""
    described = await api.ask("GET", "/v1/openapi.json")
    required = {
        (each["operationId"], parameter["name"])
        for path in described["paths"].values()
        for each in path.values()
        for parameter in each["parameters"]
        if parameter["in"] == "query" and parameter.get("required")
    }
    wanted = {
        (each.name, field.encode_name)
        for each in OPERATIONS
        for field in msgspec.structs.fields(each.query)
        if field.required
    }
    assert required == wanted
    assert ("get_update", "id") in required


async def test_many_runs_are_changed(api: Api) -> None:
    for number in range(3):
        await api.start(number, tags=["trial"])
    kept = await api.start(9)

    async def bulk(**body: object) -> list[tuple[str, Any]]:
        answer = await api.http.post("/v1/bulk", json={"do": "cancel", "where": {}, **body})
        assert answer.headers["content-type"] == "text/event-stream"
        return events_of(answer.text)

    trial = {"tag": ["trial"]}
    counted = await bulk(where=trial, dry_run=True)
    assert counted[-1] == ("done", {"matched": 3, "changed": 3, "unchanged": 0})
    assert (await bulk(where=trial, dry_run=False, reason="over"))[-1][1]["changed"] == 3
    assert (await bulk(where=trial, dry_run=False))[-1][1]["changed"] == 0
    signal = {"do": "signal", "name": "stop", "signal_id": "s-1", "dry_run": False}
    assert (await bulk(**signal))[-1][1] == {"matched": 1, "changed": 1, "unchanged": 0}
    assert (await bulk(**signal))[-1][1]["changed"] == 0
    for empty in ({"workflow": []}, {"tag": []}, {"status": []}, {"attributes": {}}):
        body = {"do": "cancel", "where": empty, "dry_run": False}
        await api.ask("POST", "/v1/bulk", body, status=422)  # it would mean all runs
    wrong = await bulk(where={"workflow": ["a b"]}, dry_run=True)
    assert wrong[-1][0] == "problem"
    await api.ask("POST", "/v1/bulk", {"do": "signal", "where": {}, "dry_run": True}, status=422)
    await api.ask("POST", "/v1/bulk", {"do": "cancel", "where": {}}, status=422)
    assert (await api.ask("GET", f"/v1/runs/{kept}"))["state"] == "queued"


async def test_a_run_that_is_not_archived_is_not_restored(api: Api) -> None:
    run_id = await api.start()
    problem = await api.ask("POST", f"/v1/runs/{run_id}/restore", status=422)
    assert "not archived" in problem["detail"]


def events_of(text: str) -> list[tuple[str, Any]]:
    """Return the events of a stream that has ended."""
    found: list[tuple[str, Any]] = []
    for block in text.split("\n\n"):
        lines = [line.partition(": ") for line in block.splitlines() if line[:1] != ":"]
        fields = {name: value for name, _, value in lines}
        if "event" in fields:
            data = "\n".join(value for name, _, value in lines if name == "data")
            found.append((fields["event"], json.loads(data)))
    return found
