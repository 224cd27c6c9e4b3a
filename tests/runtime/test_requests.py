"""Requests to URLs of users, against a real server in a process of its own. B14, edge case 21."""

from __future__ import annotations

import asyncio
import socket
import threading
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.client import Client
from holdfast.errors import ConfigurationError, InvalidInput, TransientDatabaseError
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import StoreClock
from holdfast.types import DeliveryRecord, NewSubscription, UrlTarget
from holdfast.webhooks import is_inner, new_secret, sign, verify
from holdfast.worker.requests import Answer, post
from holdfast.worker.services import deliverer
from holdfast.worker.services.deliverer import Deliverer
from holdfast.worker.services.service import ServiceContext
from tests.targets import Target, target

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
async def server() -> AsyncIterator[Target]:
    async with target() as running:
        yield running


async def send(server: Target, path: str, seconds: float = 30.0) -> Answer:
    return await post(server.url(path), {}, b"{}", allow_inner=True, seconds=seconds)


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/ok", 204, None),
        ("/interim", 200, None),
        ("/fails", 500, "the answer is 500: not today"),
        ("/binary", 500, "the answer is 500: ab\N{REPLACEMENT CHARACTER}"),
        ("/redirects", 302, "the answer is a redirect (302), which is not followed"),
        ("/garbage", None, "the answer is not HTTP/1.1"),
        ("/long", None, "the answer is not HTTP/1.1"),
        ("/closes", None, "the connection was closed without an answer"),
        ("/endless", None, "the answer's headers take more than 64 KiB"),
    ],
)
async def test_answers(server: Target, path: str, status: int | None, error: str | None) -> None:
    assert await send(server, path) == Answer(status, error)
    assert (await server.next())["path"] == path


@pytest.mark.parametrize(
    ("path", "seconds"), [("/busy", 900.0), ("/later", 86_400.0), ("/odd", 0.0), ("/asks", 0.0)]
)
async def test_a_target_says_for_how_long_it_is_busy(
    server: Target, path: str, seconds: float
) -> None:
    """For a day at most, and only with 429 and 503."""
    assert (await send(server, path)).retry_after == seconds


async def test_whatever_stops_a_request_is_told_as_its_error(
    server: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it ends its attempt, and cuts off no other delivery."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert await send(server, "/ok") == Answer(None, "RuntimeError: can't start new thread")


@pytest.mark.parametrize("path", ["/hangs", "/dribbles"])
async def test_a_target_that_hangs_or_answers_slowly_is_given_up(server: Target, path: str) -> None:
    assert await send(server, path, 0.5) == Answer(None, "no answer within 0.5 s")


async def test_of_ten_megabytes_only_the_beginning_is_read(server: Target) -> None:
    tracemalloc.start()
    try:
        status, error, _ = await send(server, "/huge")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (status, error) == (500, "the answer is 500: " + "z" * 200)
    assert most < 2_000_000


async def test_inner_addresses_are_refused(server: Target) -> None:
    """Also by a name that leads there; nothing is sent."""
    for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "2130706433", "127.1"):
        answer = await post(f"http://{host}:{server.port}/ok", {}, b"{}")
        assert answer.status is None
        assert "inner address" in (answer.error or "") or "cannot be resolved" in answer.error
    await send(server, "/fails")
    assert (await server.next())["path"] == "/fails"


@pytest.mark.parametrize(
    "address",
    [
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "127.8.8.8",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
    ],
)
def test_an_address_that_is_not_of_the_public_internet(address: str) -> None:
    assert is_inner(address)
    assert not is_inner("93.184.216.34")
    assert not is_inner("2606:2800:220:1:248:1893:25c8:1946")


async def test_the_checked_address_is_the_one_that_is_connected_to(
    server: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that answers differently the second time leads nowhere else."""
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def answers(host: Any, *args: Any, **options: Any) -> Any:
        asked.append(str(host))
        if host == "rebinding.example" and asked.count(host) > 1:
            raise AssertionError("the name was resolved again")
        return resolve("127.0.0.1" if host == "rebinding.example" else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    url = f"http://rebinding.example:{server.port}/ok"
    refused = await post(url, {}, b"{}")
    assert "rebinding.example is at 127.0.0.1, an inner address" in (refused.error or "")
    asked.clear()
    assert await post(url, {}, b"{}", allow_inner=True) == Answer(204, None)
    assert asked.count("rebinding.example") == 1
    assert (await server.next())["headers"]["host"] == f"rebinding.example:{server.port}"


async def test_a_host_that_is_not_resolved_does_not_hold_up_the_others(
    server: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server may let a look-up hang for longer than a request may take."""
    end, asked = threading.Event(), list[str]()

    def answers(host: str, port: int, *args: Any, **options: Any) -> Any:
        asked.append(host)
        if host == "hangs.example":
            end.wait(60)
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    hanging = [asyncio.create_task(post("http://hangs.example/", {}, b"{}")) for _ in range(50)]
    try:
        async with asyncio.timeout(30):
            while len(asked) < 2:
                await asyncio.sleep(0.01)
        url = f"http://fine.example:{server.port}/ok"
        assert await post(url, {}, b"{}", allow_inner=True) == Answer(204, None)
    finally:
        end.set()
        for each in hanging:
            each.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_one_inner_address_of_several_refuses_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answers(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        return [(2, 1, 6, "", (each, port)) for each in ("93.184.216.34", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    answer = await post("http://mixed.example/", {}, b"{}")
    assert "mixed.example is at 10.0.0.1" in (answer.error or "")


async def test_no_one_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        answer = await post(f"http://127.0.0.1:{port}/", {}, b"{}", allow_inner=True)
    assert answer.status is None
    assert answer.error is not None


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "10.1.2.3", "127.1", "2130706433", "[::1]", "[::ffff:10.0.0.1]"),
        *("localhost", "LOCALHOST.", "shop.localhost."),
    ],
)
async def test_an_inner_address_is_refused_when_one_subscribes(host: str) -> None:
    """Unless it is allowed. Where a name leads is known when a request is sent."""
    async with Client(store=MemoryStore()) as client:
        url = f"https://{host}:8443/events"
        with pytest.raises(ConfigurationError, match="is an inner address: give allow_inner"):
            await client.topics.subscribe("a", url=url, secret=SECRET)
        await client.topics.subscribe("a", url=url, secret=SECRET, allow_inner=True)
        for outer in ("https://8.8.8.8/", "https://[2606:4700::1111]/", "https://intra.example/"):
            await client.topics.subscribe("a", url=outer, secret=SECRET)


async def test_deliveries_are_signed_and_the_receiver_can_tell(server: Target) -> None:
    """B14. From a publish to the receiver's check, with the code of a worker."""
    store = MemoryStore()
    async with Client(store=store) as client:
        secret = new_secret()
        one = await client.topics.subscribe(
            "a.#", url=server.url("/ok"), secret=secret, allow_inner=True
        )
        # As SQL or an earlier release may have subscribed: a worker checks the address again.
        inner = UrlTarget(url=server.url("/ok"), secret=secret)
        await store.subscribe(NewSubscription(pattern="a.b", target=inner, match='{"n":[]}'))
        published = await client.topics.publish("a.b", {"n": [1, "ü"]}, event_id="e-1")
        assert published.urls == 2
        context = ServiceContext(store, "w", StoreClock(store), lambda notices: None, 60.0)
        service = Deliverer(context)
        await service.run_once()
        request = await server.next()
        now = store.time() / 1e6
        body = request["body"].encode()
        assert verify(secret, request["headers"], body, now=now) == f"e-1/{one}"
        assert b'"data":{"n":[1,"\xc3\xbc"]}' in body
        for bad in (
            {"secret": new_secret()},
            {"body": body + b" "},
            {"now": now + 301},
            {"headers": {**request["headers"], "webhook-id": "e-2"}},
            {"headers": {}},
        ):
            given = {"secret": secret, "headers": request["headers"], "body": body, "now": now}
            with pytest.raises(InvalidInput):
                verify(**{**given, **bad})
        [refused] = await client.topics.deliveries()
        assert "an inner address" in (refused.error or "")


async def test_an_event_id_of_any_characters_is_one_header(server: Target) -> None:
    """B14. It adds no header, and the signature is that of the id that arrives."""
    ids = [" \r\nx-other: 1", "ü", "50%", "a b"]
    store = MemoryStore()
    async with Client(store=store) as client:
        one = await client.topics.subscribe(
            "a", url=server.url("/ok"), secret=SECRET, allow_inner=True
        )
        for event_id in ids:
            await client.topics.publish("a", event_id=event_id)
        context = ServiceContext(store, "w", StoreClock(store), lambda notices: None, 60.0)
        await Deliverer(context).run_once()
        requests = [await server.next() for _ in ids]
        now = store.time() / 1e6
        for request in requests:
            assert "x-other" not in request["headers"]
        assert {
            verify(SECRET, request["headers"], request["body"].encode(), now=now)
            for request in requests
        } == {f"%20%0D%0Ax-other:%201/{one}", f"%C3%BC/{one}", f"50%25/{one}", f"a%20b/{one}"}
        assert await client.topics.deliveries() == []


async def urls_left(client: Client) -> set[str]:
    """Return the targets of what is not delivered yet."""
    return {each.url or "" for each in await client.topics.deliveries(limit=1_000)}


async def test_a_target_that_hangs_does_not_hold_up_the_others(
    server: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B14."""
    store = MemoryStore()
    async with Client(store=store) as client:
        for path in ("/hangs", "/fails", "/ok"):
            await client.topics.subscribe(
                "a", url=server.url(path), secret=SECRET, allow_inner=True
            )
        for _ in range(60):
            await client.topics.publish("a")
        context = ServiceContext(store, "w", StoreClock(store), lambda notices: None, 60.0)
        service = Deliverer(context)
        await service.start()
        try:
            paths: list[str] = []
            while paths.count("/ok") < 60 or paths.count("/fails") < 60:
                paths.append((await server.next())["path"])
            assert paths.count("/hangs") == 10
            async with asyncio.timeout(60):
                while await urls_left(client) != {server.url("/hangs"), server.url("/fails")}:
                    await asyncio.sleep(0.01)
        finally:
            await service.stop()
        left = await client.topics.deliveries(limit=1_000)
        failed = next(each for each in left if each.error is not None)
        assert isinstance(failed, DeliveryRecord)
        assert (failed.status, failed.error) == (500, "the answer is 500: not today")


@pytest.mark.parametrize("fails", ["end_deliveries", "claim_deliveries"])
async def test_a_call_that_fails_cuts_off_no_other_request(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, failed, sent = MemoryStore(), asyncio.Event(), list[str]()

    async def post(url: str, *given: object, **options: object) -> Answer:
        sent.append(url)
        if len(sent) > 1 or fails == "claim_deliveries":
            await failed.wait()
            for _ in range(20):
                await asyncio.sleep(0)
        return Answer(200, None)

    monkeypatch.setattr(deliverer, "post", post)
    call = getattr(store, fails)

    async def failing(*given: Any, **options: Any) -> Any:
        if sent and not failed.is_set():
            failed.set()
            raise TransientDatabaseError("once")
        return await call(*given, **options)

    async with Client(store=store) as client:
        await client.topics.subscribe("a", url="https://example.org/", secret=SECRET)
        for _ in range(5):
            await client.topics.publish("a")
        context = ServiceContext(store, "w", StoreClock(store), lambda notices: None, 60.0)
        service = Deliverer(context)
        monkeypatch.setattr(store, fails, failing)
        running = asyncio.create_task(service.run_once())
        while len(sent) < 5:
            await asyncio.sleep(0)
        service.notified("")  # claim again
        with pytest.raises(TransientDatabaseError, match="once"):
            await running
        assert len(sent) == 5
        left = 1 if fails == "end_deliveries" else 0
        assert len(await client.topics.deliveries()) == left


def test_the_signature_is_that_of_the_specification() -> None:
    """The example of Standard Webhooks."""
    body = b'{"test": 2432232314}'
    signature = sign(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_stopping_ends_what_is_under_way(server: Target) -> None:
    """Ctrl-C waits for no target."""
    task = asyncio.create_task(send(server, "/hangs"))
    await server.next()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_cannot_be_claimed_is_not_asked_for_without_end() -> None:
    store = MemoryStore()
    async with Client(store=store) as client:
        await client.topics.subscribe("a", url="https://example.org/", secret=SECRET)
        await client.topics.publish("a")
        store._tables.subscriptions.clear()  # pyright: ignore[reportPrivateUsage]
        context = ServiceContext(store, "w", StoreClock(store), lambda notices: None, 60.0)
        service = Deliverer(context)
        await service.run_once()
        assert service.next_due is None


async def test_five_targets_that_hang_leave_what_becomes_free_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B14. Of one target ten requests are under way at most, also when some of ten have ended."""
    under_way, most, arrived = Counter[str](), 0, list[str]()
    all_hang, all_arrived, ends = asyncio.Event(), asyncio.Event(), asyncio.Semaphore(0)

    async def hang(url: str, *_: object, **__: object) -> Answer:
        nonlocal most
        if url.endswith("ok"):
            arrived.append(url)
            if len(arrived) == 3:
                all_arrived.set()
            return Answer(204, None)
        under_way[url] += 1
        most = max(most, under_way[url])
        if under_way.total() == 50:
            all_hang.set()
        await ends.acquire()
        under_way[url] -= 1
        return Answer(None, "no answer")

    monkeypatch.setattr(deliverer, "post", hang)
    store = MemoryStore()
    async with Client(store=store) as client:
        for n in range(5):
            await client.topics.subscribe("a", url=f"https://example.org/{n}", secret=SECRET)
        await client.topics.subscribe("b", url="https://example.org/ok", secret=SECRET)
        for _ in range(30):
            await client.topics.publish("a")
        service = Deliverer(
            ServiceContext(store, "w", StoreClock(store), lambda notices: None, 60.0)
        )
        await service.start()
        try:
            async with asyncio.timeout(60):
                await all_hang.wait()
                for _ in range(3):
                    await client.topics.publish("b")
                all_hang.clear()
                ends.release()
                await all_arrived.wait()
                await all_hang.wait()
                all_hang.clear()
                for _ in range(3):
                    ends.release()
                await all_hang.wait()
            assert most == 10
        finally:
            await service.stop()
