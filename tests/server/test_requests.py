"""What a request may look like, and what is said of one that may not."""

from __future__ import annotations

from collections.abc import AsyncIterator

from openapi_spec_validator import validate

from tests.server.shop import HOST, Api

RUNS = "/v1/workflows/checkout/runs"
JSON = {"Content-Type": "application/json"}


BODIES = [
    (b"", 422),  # the input of a checkout is a number
    (b"{", 400),
    (b'{"input": 1e400}', 422),
    (b'{"input": "\\ud800"}', 400),
    (b'{"input": "\xff"}', 400),
    (b"[" * 200_000, 422),
    (b'{"input": ' + b'{"a":' * 200_000, 400),
    (b'{"input": ' + b"[" * 257 + b"]" * 257 + b"}", 422),
    (b'{"input": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", 422),
    (b'{"input": 1, "unknown": 2}', 422),
    (b'{"input": 1, "tags": [' + b",".join([b'"t"'] * 21) + b"]}", 422),
    (b'{"input": 1, "headers": {"a": "' + b"x" * 1025 + b'"}}', 422),
    (b'{"input": 1, "key": "' + b"k" * 501 + b'"}', 422),
    (b'{"input": 1, "key": ""}', 422),
    (b'{"input": 1, "key": "\\u0000"}', 422),
    (b'{"input": 1, "delay": -1}', 422),
    (b'{"input": 1, "delay": "soon"}', 422),
    (b'{"input": 1, "priority": 5}', 422),
    (b'{"input": 1, "start_at": "2030-01-01T00:00:00"}', 422),
    (b'{"input": 1, "queue": "a b"}', 422),
    (b"x" * 2_000_000, 413),
]


async def test_bodies_that_cannot_be_are_refused(api: Api) -> None:
    for body, status in BODIES:
        answer = await api.http.post(RUNS, content=body, headers=JSON)
        assert answer.status_code == status, (body[:50], answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
    assert (await api.ask("GET", "/v1/runs"))["runs"] == []


async def test_a_lone_surrogate_is_named(api: Api) -> None:
    for text, escape in ((r"\ud800", r"\ud800"), (r"\ud83d\ude00\\\uDC00!", r"\uDC00")):
        body = b'{"input": "%b"}' % text.encode()
        answer = await api.http.post(RUNS, content=body, headers=JSON)
        told = f"{escape} (byte {body.rindex(escape.encode())}) is a lone surrogate"
        assert told in answer.json()["detail"], answer.text
    cut = await api.http.post(RUNS, content=rb'{"input": "\\ud800', headers=JSON)
    assert "truncated" in cut.json()["detail"]


async def test_a_body_has_its_type_and_its_size(api: Api) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b"[" * 65536

    for headers in ({"Content-Type": "text/plain"}, {"Content-Type": ""}):
        answer = await api.http.post(RUNS, content=b'{"input": 1}', headers=headers)
        assert answer.status_code == 415
    packed = await api.http.post(RUNS, content=b"x", headers={**JSON, "Content-Encoding": "gzip"})
    assert packed.status_code == 415
    chunked = await api.http.post(RUNS, content=parts(), headers=JSON)
    assert chunked.status_code == 413
    run_id = await api.start()
    assert (await api.http.post(f"/v1/runs/{run_id}/resume", json={})).status_code == 400


async def test_edge_14_values_at_the_edge_of_json(api: Api) -> None:
    """Edge case 14. What no log could keep is refused; of a field given twice the last counts."""
    for body in (
        b'{"input": ' + b"1" * 5_000 + b"}",
        b'{"input": "\\u0000"}',
        b'{"input": 1, "tags": ["\\u0000"]}',
    ):
        answer = await api.http.post(RUNS, content=body, headers=JSON)
        assert answer.status_code == 422, (body[:40], answer.text)
    twice = await api.http.post(RUNS, content=b'{"input": "x", "input": 2}', headers=JSON)
    assert twice.status_code == 201
    assert (await api.ask("GET", twice.headers["location"]))["input"] == 2
    large = await api.http.post(RUNS, content=b'{"input": 1%b}' % (b"0" * 400), headers=JSON)
    assert large.status_code == 201
    assert (await api.ask("GET", large.headers["location"]))["input"] == 10**400


async def test_edge_13_names_that_urls_rewrite(api: Api) -> None:
    """Edge case 13. Dots, slashes and NUL in the place of a name never reach another path."""
    run_id = await api.start()
    for name in ("%2e%2e", "%2e", "a%2fb", "a%00b", "a%20b", "%ff", "a%0ab"):
        for method, path in (
            ("POST", f"/v1/workflows/{name}/runs"),
            ("POST", f"/v1/runs/{run_id}/signals/{name}"),
            ("POST", f"/v1/queues/{name}/pause"),
        ):
            answer = await api.http.request(method, path, json={})
            assert answer.status_code in (400, 404, 405, 422), (path, answer.text)
        answer = await api.http.get(f"/v1/workflows/{name}/runs")
        assert answer.status_code in (400, 404, 405, 422), (name, answer.text)
    assert (await api.ask("GET", f"/v1/runs/{run_id}/events"))["events"][1:] == []


async def test_paths_and_methods_that_are_not_there(api: Api) -> None:
    answer = await api.http.patch("/v1/runs")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    for path in ("/v1/", "/v1/nothing", "/v1/runs/", "/v1//runs", "/nothing", "/v1"):
        assert (await api.http.get(path)).status_code == 404, path
    head = await api.http.head("/v1/runs")
    assert (head.status_code, head.content) == (200, b"")


async def test_health_needs_no_key(api: Api) -> None:
    for path, answer in (("/live", {"live": True}), ("/ready", {"ready": True})):
        found = await api.http.get(path, headers={"Authorization": ""})
        assert (found.status_code, found.json()) == (200, answer)


async def test_the_description_is_valid(api: Api) -> None:
    description = await api.ask("GET", "/v1/openapi.json")
    validate(description)
    assert description["openapi"] == "3.1.0"
    assert HOST not in str(description)
    names = [
        each["operationId"] for path in description["paths"].values() for each in path.values()
    ]
    assert len(set(names)) == len(names)
