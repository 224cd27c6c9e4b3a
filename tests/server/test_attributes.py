"""Attributes and tags over HTTP: at a start, in filters and counts, and changes of them."""

from __future__ import annotations

from uuid import uuid4

from tests.server.shop import Api

RUNS = "/v1/workflows/checkout/runs"


async def started(api: Api, **body: object) -> str:
    answer = await api.ask("POST", RUNS, {"input": 1, **body}, status=201)
    return str(answer["run_id"])


async def test_runs_are_found_by_attributes(api: Api) -> None:
    acme = await started(api, attributes={"customer": "acme", "seats": 5.0, "paid": True})
    bob = await started(api, attributes={"customer": "bob b", "seats": "7"})
    run = await api.ask("GET", f"/v1/runs/{acme}")
    assert run["attributes"] == {"customer": "acme", "seats": 5, "paid": True}
    for query, found in (
        ("where=customer=acme", [acme]),
        ("where=customer=acme&where=paid=true", [acme]),
        ("where=customer=acme&where=seats=7", []),
        ("where=seats=7", [bob]),
        ("where=customer%3Dbob%20b", [bob]),
        ('where=customer="bob b"', [bob]),
    ):
        for path in ("/v1/runs", RUNS):
            page = await api.ask("GET", f"{path}?{query}")
            assert [each["run_id"] for each in page["runs"]] == found, query
            assert all("attributes" in each for each in page["runs"])
    counted = await api.ask("GET", "/v1/runs/count?by=seats&workflow=shop/checkout")
    assert counted["counts"] == {"5": 1, "7": 1}
    problem = await api.ask("GET", "/v1/runs?where=acme", status=400)
    assert problem["parameter"] == "where"
    assert "not NAME=VALUE" in problem["detail"]


async def test_attributes_and_tags_are_changed(api: Api) -> None:
    run_id = await started(api, tags=["new"], attributes={"customer": "acme"})
    body: dict[str, object] = {"attributes": {"customer": None, "seats": 2}}
    changed = await api.ask("POST", f"/v1/runs/{run_id}/attributes", body)
    assert changed == {"attributes": {"seats": 2}}
    changed = await api.ask("POST", f"/v1/runs/{run_id}/tags", {"add": ["a"], "remove": ["new"]})
    assert changed == {"tags": ["a"]}
    changed = await api.ask("POST", f"/v1/runs/{run_id}/tags", {"tags": ["b"]})
    assert changed == {"tags": ["b"]}
    run = await api.ask("GET", f"/v1/runs/{run_id}")
    assert (run["attributes"], run["tags"]) == ({"seats": 2}, ["b"])
    for name, body in (("attributes", {"attributes": {"a": 1}}), ("tags", {"tags": ["a"]})):
        await api.ask("POST", f"/v1/runs/{uuid4()}/{name}", body, status=404)


async def test_bad_attributes_are_refused(api: Api) -> None:
    for values in ({"a b": 1}, {"state": 1}, {"a": "x" * 501}, {"a": [1]}, {"a": None}):
        answer = await api.http.post(RUNS, json={"input": 1, "attributes": values})
        assert answer.status_code in (400, 422), (values, answer.text)
    run_id = await started(api)
    for values in ({"a b": 1}, {"a": [1]}):
        answer = await api.http.post(f"/v1/runs/{run_id}/attributes", json={"attributes": values})
        assert answer.status_code in (400, 422), (values, answer.text)


async def test_many_runs_are_changed_by_an_attribute(api: Api) -> None:
    acme = await started(api, attributes={"customer": "acme"})
    bob = await started(api, attributes={"customer": "bob"})
    body = {"do": "cancel", "where": {"attributes": {"customer": "acme"}}, "dry_run": False}
    answer = await api.http.post("/v1/bulk", json=body)
    assert answer.status_code == 200
    assert (await api.ask("GET", f"/v1/runs/{acme}"))["state"] == "cancelled"
    assert (await api.ask("GET", f"/v1/runs/{bob}"))["state"] == "queued"
