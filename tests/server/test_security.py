"""Attacks on the server: what others on the machine, on the network, and other sites may try."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from click.testing import CliRunner
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from holdfast.cli.root import holdfast
from holdfast.errors import ConfigurationError
from holdfast.server import Server
from holdfast.server.access import (
    Access,
    AnyAccess,
    AskedAccess,
    KeyAccess,
    Level,
    Principal,
    ProxyAccess,
    digest,
)
from holdfast.server.api.bulk import LEVELS
from holdfast.server.api.table import OPERATIONS
from holdfast.server.guard import HEADERS, Guard
from holdfast.server.pages.sessions import COOKIE, read_cookie
from holdfast.server.tokens import TokenAccess, machine_key, new_token
from holdfast.store.memory import MemoryStore
from tests.server.shop import HOST, KEY, Api, app

RUN = "01a2039a-0000-7000-8000-000000000000"
TOKENS = {"reader": "read", "writer": "write", "boss": "admin"}


@asynccontextmanager
async def served(
    access: Access, *, client: str = "127.0.0.1", **options: object
) -> AsyncIterator[httpx.AsyncClient]:
    """A server with other options; its client sends nothing of itself."""
    async with Server(store=MemoryStore(), auth=access, app=app, hosts=[HOST], **options) as server:  # type: ignore[arg-type]
        transport = httpx.ASGITransport(server, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as http:
            yield http


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    """A file with a token of each level: the token of NAME is `token-NAME`."""
    path = tmp_path / "tokens"
    path.touch(mode=0o600)
    lines = [f"{name} {level} {digest(f'token-{name}')}" for name, level in TOKENS.items()]
    path.write_text("# people\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")


def remove_line(path: Path, name: str) -> None:
    lines = [each for each in path.read_text().splitlines() if name not in each]
    path.write_text("\n".join(lines))


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "--auth key is for this machine only"),
        (["--host", "::", "--auth", "any"], "--auth any is for this machine only"),
        (["--auth", "proxy"], "--trusted-proxy"),
        (["--auth", "tokens"], "HOLDFAST_TOKENS_FILE"),
        (["--auth", "proxy", "--trusted-proxy", "here"], "does not appear to be"),
    ],
)
def test_a_server_that_would_be_open_does_not_start(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(holdfast, ["server", *arguments])
    assert result.exit_code == 2
    assert said in result.output


def test_a_line_says_what_a_token_may_see(tokens_file: Path) -> None:
    line = f"support write {digest('token-support')} only=shop,mail/send payloads=hidden\n"
    tokens_file.write_text(line)
    access = TokenAccess(tokens_file)
    support = access.of_token("token-support")
    assert support == Principal("support", "write", ("shop", "mail/send"), payloads=False)
    seen = {name: support.sees(name) for name in ("shop/a", "mail/send", "mail/read", "shop")}
    assert seen == {"shop/a": True, "mail/send": True, "mail/read": False, "shop": False}
    assert access.still(support)
    tokens_file.write_text(line.replace("only=shop,mail/send ", "only=shop "))
    assert not access.still(support)
    assert access.of_token("token-support") == Principal("support", "write", ("shop",), False)


def test_a_new_token_in_a_line_closes_the_old_one(tokens_file: Path) -> None:
    """Streams and waits ask if their principal is still there: that of the old token is not."""
    access = TokenAccess(tokens_file)
    old, other = access.of_token("token-reader"), access.of_token("token-boss")
    assert old is not None
    assert other is not None
    lines = tokens_file.read_text()
    tokens_file.write_text(lines.replace(digest("token-reader"), digest("rotated")))
    assert not access.still(old)
    assert access.still(other)
    new = access.of_token("rotated")
    assert new is not None
    assert new == old
    assert access.still(new)
    tokens_file.write_text("")  # as by an editor that writes in place
    assert not access.still(other)
    tokens_file.write_text(lines)
    assert access.still(other)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"reader read " + 64 * b"g", "line 1"),
        (b"reader read " + 64 * "\u00e9".encode(), "line 1"),
        (b"reader read \xff", "cannot be read"),
    ],
)
def test_a_file_that_was_damaged_opens_nothing(
    tokens_file: Path, line: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """While the server runs, too: no token is known, and none fails. The log says why, once."""
    access = TokenAccess(tokens_file)
    assert access.of_token("token-boss") is not None
    tokens_file.write_bytes(line)
    for _ in range(3):
        assert access.of_token("token-boss") is None
    assert [said in each for each in caplog.messages] == [True]
    with pytest.raises(ConfigurationError, match=said):
        TokenAccess(tokens_file)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("only=shop only=mail", "each once"),
        ("olny=shop", "'olny=shop' does not say what a caller may see"),
        ("shop", "write only=APP,APP/WORKFLOW or payloads=hidden"),
        ("only=", "what is seen"),
        ("only=shop,", "what is seen"),
        ("only=a/b/c", "'a/b' is not a name"),
        ("payloads=none", "write payloads=hidden, or nothing"),
    ],
)
def test_a_line_that_says_nothing_clear_opens_nothing(
    tokens_file: Path, words: str, said: str
) -> None:
    good = tokens_file.read_text()
    tokens_file.write_text(f"{good}support write {digest('token-support')} {words}\n")
    with pytest.raises(ConfigurationError, match="line 5") as refusal:
        TokenAccess(tokens_file)
    assert said in str(refusal.value)


async def test_what_does_not_say_who_asks_is_refused(tokens_file: Path) -> None:
    """B9: the header must be there, and must match."""
    wrong: list[Mapping[str, str] | list[tuple[str, str]]] = [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic a2V5OmtleQ=="},
        bearer("wrong"),
        bearer(digest("token-boss")),
        [("Authorization", "Bearer token-boss"), ("Authorization", "Bearer wrong")],
    ]
    async with served(TokenAccess(tokens_file)) as http:
        for headers in wrong:
            answer = await http.get("/v1/runs", headers=headers)
            assert answer.status_code == 401, headers
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert (await http.get("/v1/nothing", headers=headers)).status_code == 401
        assert (await http.get("/v1/runs", headers=bearer("token-boss"))).status_code == 200
    async with served(AnyAccess()) as http:
        assert (await http.get("/v1/runs")).status_code == 401
        assert (await http.get("/v1/runs", headers={"Authorization": "x"})).status_code == 200


async def test_each_operation_asks_for_its_level(tokens_file: Path) -> None:
    """Without a token, and with one that may do less, no operation answers: no path is left out."""
    levels = list(TOKENS.values())
    async with served(TokenAccess(tokens_file)) as http:
        for operation in OPERATIONS:
            for path in operation.paths:
                url = re.sub(r"\{run\}", RUN, path)
                url = re.sub(r"\{\w+\}", "name", url)
                if operation.level == "open":  # the token of its path is the key
                    answer = await http.request(operation.method, url, content=b"{}")
                    assert answer.json()["type"].endswith("webhook-not-found"), path
                    continue
                assert (await http.request(operation.method, url)).status_code == 401, path
                needed = levels.index(operation.level)
                for name in list(TOKENS)[:needed]:
                    answer = await http.request(
                        operation.method, url, headers=bearer(f"token-{name}")
                    )
                    assert answer.status_code == 403, f"{operation.method} {path} by {name}"
        for path in ("/v1/runs/health", "/v1/live", "/v1/runs;/live", "/v1/assets/x", "/v1/"):
            assert (await http.get(path)).status_code == 401, path


async def test_a_token_that_is_removed_is_closed_at_once(tokens_file: Path) -> None:
    """Its sessions end with it."""
    access = TokenAccess(tokens_file)
    async with served(access) as http:
        await http.get("/login?key=token-reader")
        cookie = http.cookies[COOKIE]
        assert (await http.get("/v1/runs", headers=bearer("token-reader"))).status_code == 200
        assert (await http.get("/runs")).status_code == 200
        assert read_cookie(access, cookie) == Principal("reader", "read")
        remove_line(tokens_file, "reader")
        assert (await http.get("/v1/runs", headers=bearer("token-reader"))).status_code == 401
        assert (await http.get("/v1/runs", headers=bearer("token-boss"))).status_code == 200
        assert (await http.get("/runs")).status_code == 303
        assert not access.still(Principal("reader", "read"))
        os.chmod(tokens_file, 0o644)
        assert (await http.get("/v1/runs", headers=bearer("token-boss"))).status_code == 401


def test_files_that_others_can_read_are_refused(tmp_path: Path, tokens_file: Path) -> None:
    home = tmp_path / "data"
    key = machine_key(home)
    assert machine_key(home) == key
    assert len(key) > 40
    assert stat.S_IMODE((home / "server.key").stat().st_mode) == 0o600
    (home / "server.key").chmod(0o640)
    with pytest.raises(ConfigurationError, match="others can read"):
        machine_key(home)
    tokens_file.chmod(0o604)
    with pytest.raises(ConfigurationError, match="others can read"):
        TokenAccess(tokens_file)
    tokens_file.chmod(0o600)
    tokens_file.write_text("reader everything " + "0" * 64)
    with pytest.raises(ConfigurationError, match="line 1"):
        TokenAccess(tokens_file)


def test_a_token_is_made_for_the_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(holdfast, ["server", "token", "ci", "write"])
    assert result.exit_code == 0
    line, token = result.stdout.strip(), result.stderr.strip()
    path = tmp_path / "made"
    path.touch(mode=0o600)
    path.write_text(line)
    assert TokenAccess(path).of_token(token) == Principal("ci", "write")
    assert token not in line
    assert new_token() != new_token()


async def test_each_answer_has_the_headers(api: Api) -> None:
    run_id = await api.start()
    for method, path in (
        ("GET", "/v1/runs"),
        ("GET", "/v1/nothing"),
        ("PATCH", "/v1/runs"),
        ("GET", "/nothing"),
        ("GET", "/live"),
        ("GET", "/login"),
        ("GET", "/v1/openapi.json"),
        ("GET", f"/v1/runs/{run_id}/input"),
        ("DELETE", f"/v1/runs/{run_id}"),
        ("GET", f"/v1/runs/{run_id}/attach"),
    ):
        answer = await api.http.request(method, path)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, f"{method} {path}: {name}"
        assert answer.headers["cache-control"] == "no-store"
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


async def test_only_our_hosts_are_answered_to(api: Api) -> None:
    for host in ("evil.test", "ops.test.evil.test", "evil.test:80", "", "[::1", "ops.test@evil"):
        for path in ("/v1/runs", "/live", "/login"):
            answer = await api.http.get(path, headers={"Host": host})
            assert answer.status_code == 421, host
    for host in (HOST, f"{HOST}:7433", HOST.upper()):
        assert (await api.http.get("/v1/runs", headers={"Host": host})).status_code == 200
    twice = [("Host", HOST), ("Host", "evil.test"), *bearer(KEY).items()]
    assert (await api.http.get("/v1/runs", headers=twice)).status_code in (400, 421)


@pytest.mark.parametrize(
    ("named", "asked"),
    [("ops.test:8000", "ops.test"), ("Ops.test", "ops.test:8000"), ("::1", "[::1]:7433")],
)
async def test_a_host_is_named_with_or_without_a_port(named: str, asked: str) -> None:
    """Fault: a name with a port was never answered to, and the refusal did not name the host."""
    transport = httpx.ASGITransport(Guard(PlainTextResponse("here"), [named]))
    async with httpx.AsyncClient(transport=transport, base_url="http://any") as http:
        assert (await http.get("/", headers={"Host": asked})).text == "here"
        refused = (await http.get("/", headers={"Host": "evil.test:80"})).json()["detail"]
    for part in ("'evil.test:80'", "--allowed-host", "hosts="):
        assert part in refused


async def test_pages_of_other_sites_change_nothing(api: Api) -> None:
    run_id = await api.start()
    await api.http.get(f"/login?key={KEY}")
    session = {"Cookie": f"{COOKIE}={api.http.cookies[COOKIE]}", **bearer(KEY)}
    api.http.cookies.clear()
    for method, path in (
        ("DELETE", f"/v1/runs/{run_id}"),
        ("POST", f"/v1/runs/{run_id}/terminate"),
        ("PUT", "/v1/limits"),
        ("POST", "/logout"),
    ):
        for headers in (
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "none"},
            {"Origin": "https://evil.test"},
            {"Origin": "null"},
            {"Origin": f"http://{HOST}.evil.test"},
            {},
        ):
            answer = await api.http.request(method, path, headers={**session, **headers})
            assert answer.status_code == 403, f"{method} {path} {headers}"
    alone = {"Cookie": session["Cookie"], "Authorization": "", "Sec-Fetch-Site": "same-origin"}
    assert (await api.http.get("/v1/runs", headers=alone)).status_code == 401
    assert (await api.ask("GET", f"/v1/runs/{run_id}"))["state"] == "queued"
    for ours in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": f"http://{HOST}"}):
        answer = await api.http.post(f"/v1/runs/{run_id}/pause", headers={**session, **ours})
        assert answer.status_code == 200
    form = urlencode({"token": KEY})
    evil = {"Origin": "https://evil.test", "Authorization": ""}
    assert (await api.http.post("/login", content=form, headers=evil)).status_code == 403


async def test_a_token_is_traded_for_a_cookie(monkeypatch: pytest.MonkeyPatch) -> None:
    access = KeyAccess(KEY)
    async with served(access) as http:
        assert (await http.get("/runs")).status_code == 303
        assert (await http.get("/login?key=wrong")).status_code == 401
        answer = await http.get(f"/login?key={KEY}&next=//evil.test")
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        set_cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(set_cookie.split("; "))
        assert KEY not in set_cookie
        assert "Secure" not in set_cookie
        for behind in (
            {"X-Forwarded-Proto": "https"},
            {"X-Forwarded-Proto": "HTTPS, http"},
            {"Forwarded": 'for=192.0.2.4;proto="https";by=10.0.0.1, for=10.0.0.2'},
        ):
            secure = await http.get(f"/login?key={KEY}", headers=behind)
            assert "Secure" in secure.headers["set-cookie"].split("; "), behind
        plain = await http.get(f"/login?key={KEY}", headers={"X-Forwarded-Proto": "http, https"})
        assert "Secure" not in plain.headers["set-cookie"]
        value = http.cookies[COOKIE]
        assert (await http.get("/runs")).status_code == 200
        http.cookies.clear()
        name, end, number, proof = value.split(".")
        for forged in (
            f"{name}.{int(end) + 1}.{number}.{proof}",
            f"Ym9zcw==.{end}.{number}.{proof}",
            f"{name}.{end}.0.{proof}",
            f"{name}.{end}.{number}.",
            f"{name}.{end}.{number}",
            f"{name}.{end}.{proof}",
            f"{name}.{end}",
            f"{name}.-1.{number}.{proof}",
            f"{name}.{end}.{number}.\xe9",
            "\xe9",
            "",
        ):
            assert read_cookie(access, forged) is None
            page = await http.get("/runs", headers=[(b"Cookie", f"{COOKIE}={forged}".encode())])
            assert page.status_code == 303, forged
        assert read_cookie(KeyAccess("another key"), value) is None
        monkeypatch.setattr("time.time", lambda: int(end) + 1.0)
        assert read_cookie(access, value) is None


async def test_browsers_that_log_in_with_one_token_at_one_moment_are_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Streams of one browser take turns, those of two do not."""
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    cookies = set[str]()
    for _ in range(2):
        async with served(KeyAccess(KEY)) as http:
            await http.get(f"/login?key={KEY}")
            cookies.add(http.cookies[COOKIE])
    assert len(cookies) == 2


async def test_a_deadline_needs_the_level_of_terminate() -> None:
    """It ends a run without its code, too."""

    def who(request: Request) -> Principal:
        return Principal("ann", "admin" if "admin" in request.headers else "write")

    change = {"queue": "slow", "timeout": 0}
    bulk = {"do": "reschedule", "where": {}, "dry_run": True, "change": change}
    async with served(AskedAccess(who)) as http:
        run = (await http.post("/v1/workflows/checkout/runs", json={"input": 1})).json()["run_id"]
        for path, body in ((f"/v1/runs/{run}/reschedule", change), ("/v1/bulk", bulk)):
            assert (await http.post(path, json=body)).status_code == 403, path
            answer = await http.post(path, json=body, headers={"admin": "yes"})
            assert answer.status_code == 200, path


QUEUE = {"change": {"queue": "slow"}}


@pytest.mark.parametrize("level", ["read", "write", "admin"])
async def test_many_runs_are_changed_by_who_may_change_one(level: Level) -> None:
    """In the API and on the pages alike: all but `terminate` needs write."""

    def who(_: Request) -> Principal:
        return Principal("ann", level)

    async with served(AskedAccess(who)) as http:
        for do in LEVELS:
            allowed = Principal("ann", level).may("admin" if do == "terminate" else "write")
            more: dict[str, Any] = {"signal": {"name": "stop"}, "reschedule": QUEUE}.get(do, {})
            body = {"do": do, "where": {}, "dry_run": True, **more}
            assert (await http.post("/v1/bulk", json=body)).status_code == (
                200 if allowed else 403
            ), do
            page = await http.get(f"/bulk?do={do}", headers={"Accept": "text/html"})
            known = 400 if do == "reschedule" else 200
            assert page.status_code == (known if allowed else 403), do


async def test_the_log_of_changes_names_what_was_changed(caplog: pytest.LogCaptureFixture) -> None:
    """And a name cannot control the terminal of who reads it, or make up a line."""

    def who(_: Request) -> Principal:
        return Principal("ann\x1b[2J\nbob", "admin")

    async with served(AskedAccess(who)) as http:
        with caplog.at_level(logging.INFO, "holdfast.server"):
            start = await http.post("/v1/workflows/checkout/runs", json={"input": 1, "key": "o-7"})
            await http.post("/v1/queues/mail/pause", json={})
            limit = {"scope": "queue", "name": "mail", "kind": "concurrency", "most": 3}
            await http.put("/v1/limits", json=limit)
            await http.post("/v1/bulk", json={"do": "cancel", "where": {}, "dry_run": True})
            origin = {"Sec-Fetch-Site": "same-origin"}
            await http.post("/queues/pause", data={"name": "mail"}, headers=origin)
            await asyncio.sleep(0)
        lines = [each.getMessage() for each in caplog.records if each.name == "holdfast.server"]
        assert all(line.isprintable() for line in lines)
        by = "by ann\\x1b[2J\\nbob: done"
        assert f"start_run checkout o-7 {by}, run {start.json()['run_id']}" in lines
        assert f"pause_queue mail {by}" in lines
        assert f"set_limit queue mail concurrency {by}" in lines
        assert f"change_runs cancel {by}" in lines
        assert f"/queues/pause mail {by}" in lines


async def test_a_proxy_says_who_asks_and_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    access = ProxyAccess(["10.0.0.0/8"], "X-Forwarded-User", "X-Level")
    ann = {"X-Forwarded-User": "ann", "X-Level": "write"}
    async with served(access, client="10.1.2.3") as http:
        with caplog.at_level(logging.INFO, "holdfast.server"):
            answer = await http.post("/v1/workflows/checkout/runs", json={"input": 1}, headers=ann)
            await asyncio.sleep(0)  # it is written once the answer is sent
        assert answer.status_code == 201
        assert "start_run checkout by ann: done, run " in caplog.text
        assert (await http.post("/v1/queues/a/pause", headers=ann)).status_code == 403
        other = [(b"X-Forwarded-User", "Zoë".encode()), (b"X-Level", b"write")]
        run = f"/v1/runs/{answer.json()['run_id']}"
        assert (await http.post(f"{run}/pause", headers=other)).status_code == 200
        events = (await http.get(f"{run}/events", headers=ann)).json()["events"]
        assert events[-1]["details"]["by"] == "Zoë"
        for headers in (
            {},
            {"X-Forwarded-User": "ann"},
            {"X-Forwarded-User": "ann", "X-Level": "all"},
            [("X-Forwarded-User", "ann"), ("X-Forwarded-User", "bob"), ("X-Level", "admin")],
        ):
            assert (await http.get("/v1/runs", headers=headers)).status_code == 401  # type: ignore[arg-type]
    async with served(access, client="192.168.0.1") as http:
        past = {**ann, "X-Forwarded-For": "10.1.2.3", "Forwarded": "for=10.1.2.3"}
        assert (await http.get("/v1/runs", headers=past)).status_code == 401


def test_a_text_in_the_place_of_names_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="write a tuple"):
        Principal("ann", "read", only="shop")  # type: ignore[arg-type]


LIMITS = "X-Limits"


def _proxied(*limits: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of a proxy that says of ann what she may see, in so many headers."""
    return [(b"X-User", b"ann"), *((LIMITS.lower().encode(), each) for each in limits)]


@pytest.mark.parametrize(
    ("limits", "seen"),
    [
        ([], ((), True)),
        ([b"only=shop"], (("shop",), True)),
        ([b" payloads=hidden\tonly=shop,mail/send "], (("shop", "mail/send"), False)),
        ([b"payloads=hidden"], ((), False)),
    ],
)
async def test_a_proxy_says_what_a_caller_may_see(
    limits: list[bytes], seen: tuple[tuple[str, ...], bool]
) -> None:
    access = ProxyAccess(["10.0.0.0/8"], "X-User", None, LIMITS)
    scope = {"type": "http", "client": ("10.0.0.1", 1)}
    headers = [(name.lower(), value) for name, value in _proxied(*limits)]
    found = await access.principal(Request({**scope, "headers": headers}))
    assert found == Principal("ann", "admin", *seen)
    unasked = ProxyAccess(["10.0.0.0/8"], "X-User")
    assert (await unasked.principal(Request({**scope, "headers": headers}))).sees_all


@pytest.mark.parametrize(
    "limits",
    [
        [b""],
        [b"  "],
        ["\u00a0\u2003".encode()],
        [b"all"],
        [b"none"],
        [b"*"],
        [b"shop"],
        [b"only"],
        [b"only="],
        [b"only=*"],
        [b"only=shop,"],
        [b"only=shop, mail"],
        [b"only=/work"],
        [b"only=shop/"],
        [b"only=shop/a/b"],
        [b"only=.."],
        [b'only="shop"'],
        [b"only=shop;payloads=hidden"],
        [b"only=shop%2Cmail"],
        [b"ONLY=shop"],
        ["only=sh\u00f6p".encode()],
        ["only=\uff53hop".encode()],
        ["only=shop\u200b".encode()],
        [b"only=shop\0"],
        [b"payloads="],
        [b"payloads=shown"],
        [b"payloads=Hidden"],
        [b"only=shop only=vault"],
        [b"payloads=hidden payloads=hidden"],
        # One header of the caller that the proxy left, and its own: as two, or joined to one.
        [b"only=vault", b"only=shop"],
        [b"only=shop", b"only=shop"],
        [b"", b"only=shop"],
        [b"only=vault,only=shop"],
        [b"only=vault, only=shop"],
        [b"payloads=hidden, only=shop"],
        [b"only=vault, payloads=hidden"],
        [b", only=shop"],
    ],
)
async def test_limits_of_a_proxy_that_cannot_be_read_open_nothing(limits: list[bytes]) -> None:
    access = ProxyAccess(["10.0.0.0/8"], "X-User", None, LIMITS)
    async with served(access, client="10.1.2.3") as http:
        for path in ("/v1/runs", "/runs", "/metrics"):
            answer = await http.get(path, headers=_proxied(*limits))
            assert answer.status_code == 401, (path, answer.text)
    async with served(access, client="192.168.0.1") as http:  # past the proxy
        answer = await http.get("/v1/runs", headers=_proxied(b"only=shop"))
        assert answer.status_code == 401


async def test_limits_of_a_proxy_that_are_not_text_are_refused() -> None:
    access = ProxyAccess(["10.0.0.0/8"], "X-User", None, LIMITS)
    async with served(access, client="10.1.2.3") as http:
        answer = await http.get("/v1/runs", headers=_proxied(b"only=sh\xff"))
        assert answer.status_code == 400


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--auth proxy --trusted-proxy 10.0.0.0/8 --limits-header X:Limits", "name of a header"),
        ("--auth proxy --trusted-proxy 10.0.0.0/8 --limits-header=", "name of a header"),
        ("--auth proxy --trusted-proxy 10.0.0.0/8 --scope-header=Ä", "name of a header"),
        ("--auth key --limits-header X-Limits", "--limits-header is for --auth proxy"),
        ("--auth tokens --limits-header X-Limits", "--limits-header is for --auth proxy"),
        ("--auth any --trusted-proxy 10.0.0.0/8 --scope-header X-Level", "is for --auth proxy"),
    ],
)
def test_a_header_that_would_never_be_read_is_refused(words: str, said: str) -> None:
    """All callers would see and do everything."""
    refused = CliRunner().invoke(holdfast, ["server", *words.split()])
    assert refused.exit_code != 0
    assert said in refused.output


async def test_the_host_program_says_who_asks() -> None:
    """A server that is mounted asks a function, which may be asynchronous."""

    async def who(request: Request) -> Principal | None:
        name = request.headers.get("x-user")
        return None if name is None else Principal(name, "read")

    server = Server(store=MemoryStore(), auth=who, app=app, hosts=[])
    transport = httpx.ASGITransport(server)
    async with server, httpx.AsyncClient(transport=transport, base_url="http://any") as http:
        assert (await http.get("/v1/runs")).status_code == 401
        assert (await http.get("/v1/runs", headers={"X-User": "ann"})).status_code == 200
        start = await http.post("/v1/workflows/a/runs", json={}, headers={"X-User": "ann"})
        assert start.status_code == 403


async def test_a_read_only_server_has_nothing_that_changes() -> None:
    async with served(KeyAccess(KEY), read_only=True) as http:
        description = (await http.get("/v1/openapi.json")).json()
        assert {method for path in description["paths"].values() for method in path} == {"get"}
        start = await http.post("/v1/workflows/checkout/runs", json={}, headers=bearer(KEY))
        assert start.status_code == 405
        assert (await http.delete(f"/v1/runs/{RUN}", headers=bearer(KEY))).status_code == 405


async def test_payloads_are_never_pages(api: Api) -> None:
    evil = '<script>alert(1)</script>"onload=\u202e'
    path = "/v1/workflows/mail/runs?app=post"
    started = await api.ask("POST", path, {"input": evil, "tags": [evil]}, status=201)
    run = f"/v1/runs/{started['run_id']}"
    for part in ("", "/input", "/why", "/timeline", "/events"):
        answer = await api.http.get(run + part)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
    whole = await api.http.get(f"{run}/input")
    assert whole.json() == evil
    assert whole.headers["content-disposition"].startswith("attachment; ")
    missing = await api.http.get("/v1/" + "<script>")
    assert "<script>" not in missing.text


async def test_what_failed_is_not_told(
    api: Api, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error has a number, and its text is in the log only. No token is logged."""

    async def fail(*_: object, **__: object) -> None:
        raise ValueError("the password is xyzzy")

    monkeypatch.setattr(server.site.reader.runs, "list", fail)
    with caplog.at_level(logging.DEBUG):
        problem = await api.ask("GET", "/v1/runs", status=500)
    assert "xyzzy" not in str(problem)
    assert "xyzzy" in caplog.text
    assert KEY not in caplog.text


def test_no_operation_takes_an_address_or_a_file() -> None:
    """Nothing in the server opens what a request names."""
    names = {field for each in OPERATIONS for field in _fields(each.query, each.body)}
    assert not names & {"url", "uri", "path", "file", "filename", "host", "callback", "webhook"}


def _fields(*kinds: object) -> Iterator[str]:
    for kind in kinds:
        yield from getattr(kind, "__struct_fields__", ())
