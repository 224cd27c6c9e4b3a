"""What callers do at the same time, and what changes while they read."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from holdfast.errors import DatabaseUnavailable
from holdfast.store.port import Store
from tests.server.shop import Api
from tests.server.test_operations import start, until

RUNS = "/v1/workflows/checkout/runs"


async def test_edge_15_fifty_starts_with_one_key_are_one_run(api: Api) -> None:
    """Also with other inputs: the first that came decides."""

    async def begin(number: int) -> tuple[int, str]:
        headers = {"Idempotency-Key": "order-7"}
        answer = await api.http.post(RUNS, json={"input": number}, headers=headers)
        return answer.status_code, answer.json()["run_id"]

    answers = await asyncio.gather(*(begin(number) for number in range(50)))
    assert Counter(status for status, _ in answers) == {201: 1, 200: 49}
    assert len({run_id for _, run_id in answers}) == 1
    assert len((await api.ask("GET", "/v1/runs"))["runs"]) == 1


async def test_edge_16_one_bad_start_among_many_harms_no_other(api: Api) -> None:
    """They may share a transaction; one that is refused must not undo the others."""

    async def begin(number: int) -> int:
        body: dict[str, object] = {"input": number}
        if number == 10:
            body["tags"] = ["no\0text"]
        return (await api.http.post(RUNS, json=body)).status_code

    statuses = await asyncio.gather(*(begin(number) for number in range(21)))
    assert statuses[10] in (400, 422)
    assert statuses[:10] + statuses[11:] == [201] * 20
    assert len((await api.ask("GET", "/v1/runs"))["runs"]) == 20


@pytest.mark.usefixtures("worker")
async def test_edge_18_two_people_decide_at_once(api: Api) -> None:
    """Edge case 18. One decides, and the other is told who did and how."""
    run_id = await start(api, "desk", 7)
    path = f"/v1/runs/{run_id}/approvals"

    async def asked() -> Any:
        return (await api.ask("GET", f"/v1/approvals?run={run_id}"))["approvals"]

    [approval] = await until(asked)
    people = {"ann": True, "bob": False}
    key = approval["key"]
    unfit = {"key": key, "approved": True, "by": "eve", "values": {"discount": "much"}}
    await api.ask("POST", path, unfit, status=422)

    async def decide(name: str, approved: bool) -> tuple[str, httpx.Response]:
        values = {"values": {"discount": 5}} if approved else {}
        body = {"key": key, "approved": approved, "by": name, **values}
        headers = {"Idempotency-Key": name}
        return name, await api.http.post(path, json=body, headers=headers)

    answers = dict(await asyncio.gather(*(decide(*each) for each in people.items())))
    [winner] = [name for name, answer in answers.items() if answer.status_code == 200]
    [loser] = people.keys() - {winner}
    told = answers[loser].json()
    assert (told["status"], told["type"]) == (409, "urn:holdfast:problem:approval-decided")
    assert (told["approved"], told["by"]) == (people[winner], winner)
    again = await decide(winner, people[winner])
    assert again[1].json() == {"changed": False}


@pytest.mark.usefixtures("worker")
async def test_edge_18_a_decision_after_the_timeout(api: Api) -> None:
    """Edge case 18. The run does not wait for it any more, and the answer says so."""
    run_id = await start(api, "impatient", "20ms")

    async def waits_for_the_signal() -> bool:
        wait = (await api.ask("GET", f"/v1/runs/{run_id}"))["wait"]
        return wait is not None and "go" in wait["awaiting"]

    await until(waits_for_the_signal)
    late = {"key": "approve", "approved": True}
    problem = await api.ask("POST", f"/v1/runs/{run_id}/approvals", late, status=409)
    assert problem["type"] == "urn:holdfast:problem:approval-closed"
    await api.ask("POST", f"/v1/runs/{run_id}/signals/go")
    assert (await api.ask("GET", f"/v1/runs/{run_id}?wait=30"))["output"] == "not in time"


async def test_edge_22_a_filter_that_nobody_matches_ends(api: Api) -> None:
    for number in range(5):
        await api.start(number)
    for query in ("tag=nobody", "queue=nobody", "input.customer=7", "workflow=nobody/here"):
        seen, cursor = 0, ""
        while True:
            page = await api.ask("GET", f"/v1/runs?limit=2&{query}{cursor}")
            assert page["runs"] == []
            seen += 1
            assert seen < 10
            if page["cursor"] is None:
                break
            cursor = f"&cursor={page['cursor']}"


async def test_edge_23_runs_that_change_while_they_are_listed(api: Api) -> None:
    """None is seen twice, and none is missed that kept its state."""
    runs = [await api.start(number) for number in range(12)]
    seen: list[str] = []
    cursor = ""
    for turn in range(20):
        page = await api.ask("GET", f"/v1/runs?limit=3&status=queued{cursor}")
        seen += [each["run_id"] for each in page["runs"]]
        await api.ask("POST", f"/v1/runs/{runs[turn % 4]}/pause")  # the oldest leave the filter
        await api.start(100 + turn)  # newer ones come
        if page["cursor"] is None:
            break
        cursor = f"&cursor={page['cursor']}"
    assert len(seen) == len(set(seen))
    assert set(runs[4:]) <= set(seen)
    assert set(seen) <= set(runs)


async def test_edge_26_two_callers_act_on_one_run(api: Api) -> None:
    """One of them changes it, however many ask at once; later ones are told that it had ended."""
    run_id = await api.start()
    ends = [api.ask("POST", f"/v1/runs/{run_id}/cancel", {"reason": "late"}) for _ in range(5)]
    changed = [each["changed"] for each in await asyncio.gather(*ends)]
    assert changed.count(True) == 1
    log = (await api.ask("GET", f"/v1/runs/{run_id}/events"))["events"]
    assert [each["type"] for each in log].count("WorkflowCancelRequested") == 1
    problem = await api.ask("POST", f"/v1/runs/{run_id}/signals/go", 1, status=409)
    assert "cancelled" in problem["detail"]


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_lost_answer_is_said(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: `try again` was all that it said, and two messages were there."""

    async def lost(*_: object) -> None:
        raise DatabaseUnavailable("db.internal", unanswered=True)

    await api.ask("POST", "/v1/message-queues", {"name": "parcels"}, status=201)
    monkeypatch.setattr(store, "send_messages", lost)
    path = "/v1/message-queues/parcels/messages"
    problem = await api.ask("POST", path, {"payload": 1}, status=503)
    assert "may have carried out the call" in problem["detail"]
    assert "db.internal" not in str(problem)
