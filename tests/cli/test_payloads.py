"""The command line without the keys of an app: it says which one is missing (trap 20)."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast import App, Client, Context, SyncClient, sweep
from holdfast.cli.process.loading import AppReference
from holdfast.errors import PayloadLocked
from holdfast.insight.run_files import read_file
from holdfast.payloads import AesGcm, LargePayloads, Zlib
from tests.cli.conftest import CommandLine

SECRET = "card-4711"
KEYS = {"k1": AesGcm.new_key(), "k2": AesGcm.new_key()}
app = App("bank", payload_codec=[Zlib(min_bytes=64), AesGcm({"k1": AesGcm.new_key()})])
packed = App("depot", payload_codec=Zlib(min_bytes=64))


@app.step
async def charge(card: str) -> str:
    return card


@app.workflow
async def pay(ctx: Context, card: str) -> list[str]:
    ctx.set_value("card", card)
    return [await charge(card), card * 20]


@app.workflow
async def refuse(ctx: Context, card: str) -> None:
    raise ValueError(card)


@packed.workflow
async def pack(ctx: Context, text: str) -> str:
    return text * 20


def tables(url: str) -> str:
    """Return all rows of the schema, as text."""
    with psycopg.connect(url) as connection:
        names = connection.execute(
            "select tablename from pg_tables where schemaname = 'holdfast'"
        ).fetchall()
        return "\n".join(
            str(connection.execute(f"select t::text from holdfast.{name} t".encode()).fetchall())
            for (name,) in names
        )


def test_what_is_encrypted_is_shown_as_such(cli: CommandLine) -> None:
    async def use() -> tuple[object, object]:
        async with Client(cli.url, app=app) as client:
            paid, refused = await client.start(pay, SECRET), await client.start(refuse, SECRET)
            await sweep(app, cli.url)
            async with await psycopg.AsyncConnection.connect(cli.url) as connection:
                within = await client.start(pay, SECRET, connection=connection)
            await sweep(app, cli.url)
            assert await paid.result() == await within.result() == [SECRET, SECRET * 20]
            return paid.run_id, refused.run_id

    paid, refused = asyncio.run(use())
    assert SECRET not in tables(cli.url)
    shown = cli.json("runs", "show", str(paid))
    assert shown["input"] == shown["output"] == "(encrypted with key k1)"
    assert {each["details"]["result"] for each in shown["log"] if each["key"] == "charge"} == {
        "(encrypted with key k1)"
    }
    shown = cli.json("runs", "show", str(refused))
    assert shown["error"]["kind"] == "builtins.ValueError"
    assert shown["error"]["message"] == "(encrypted with key k1)"
    for command in ("show", "log", "why"):
        assert SECRET not in cli("runs", command, str(paid)).output


def test_what_is_only_compressed_is_shown(cli: CommandLine) -> None:
    with SyncClient(cli.url, app=packed) as client:
        run = client.start(pack, "long")
        asyncio.run(sweep(packed, cli.url))
        assert run.result() == "long" * 20
        assert cli.json("runs", "show", str(run.run_id))["output"] == "long" * 20
    assert "long" * 20 not in tables(cli.url)


def bank(*keys: str) -> App:
    """Return an app that has these keys, the first of which encrypts."""
    app = App("rotating", payload_codec=AesGcm({key: KEYS[key] for key in keys}))

    @app.workflow
    async def wait(ctx: Context, card: str) -> list[str]:
        first = await ctx.step("first", lambda: card)
        return [first, await ctx.wait_for_signal("more", type=str)]

    return app


async def test_old_payloads_are_read_with_old_keys(cli: CommandLine) -> None:
    """A run that began with one key continues with another, by replay."""
    before, after = bank("k1"), bank("k2", "k1")
    async with Client(cli.url, app=before) as client:
        run = await client.start("wait", SECRET)
    await sweep(before, cli.url)
    async with Client(cli.url, app=after) as client:
        await client.signal(run.run_id, "more", SECRET)
        assert (await sweep(after, cli.url)).ended == 1
        assert await client.result(run.run_id) == [SECRET, SECRET]
    stored = tables(cli.url)
    assert SECRET not in stored
    assert "aes-gcm/1:k1" in stored
    assert "aes-gcm/1:k2" in stored


VAULT = """
from holdfast import App, Context
from holdfast.payloads import AesGcm

app = App("vault", payload_codec=AesGcm({{"k1": {key!r}}}))


@app.step
async def charge(card: str) -> str:
    return card


@app.workflow
async def pay(ctx: Context, card: str) -> str:
    receipt = await charge(card)
    return receipt
"""


def test_an_encrypted_run_of_the_archive_is_replayed(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: it was refused, as if the app had no key."""
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}/archive")
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / f"vault_{uuid4().hex}.py"
    file.write_text(VAULT.format(key=KEYS["k1"]))
    vault = AppReference.parse(str(file)).load()

    async def use() -> str:
        async with Client(cli.url, app=vault) as client:
            run = await client.start("pay", SECRET)
            await sweep(vault, cli.url)
            assert await run.result() == SECRET
            return str(run.run_id)

    run_id = asyncio.run(use())
    with psycopg.connect(cli.url) as connection:
        connection.execute("update holdfast.runs set delete_after = now() - interval '1 day'")
    assert "deleted 1 run" in cli("sweep").stdout
    assert SECRET not in cli("runs", "log", run_id).stdout
    shown = cli("replay", run_id, str(file), "--until", "charge", "--locals").stdout
    assert "1 StepCompleted charge: the end" in shown
    cli("replay", run_id, str(file))
    cli("replay", run_id, str(file), "--diff", run_id)
    cli("runs", "stack", run_id, str(file))


def test_a_limit_with_a_key_is_refused_where_inputs_are_encoded(cli: CommandLine) -> None:
    """The database cannot look for it: all runs would count together."""
    limit = ("limits", "set", "--workflow", "bank/pay", "--app", f"{__name__}:app")
    refused = cli(*limit, "--concurrency", "1", "--key", "input.card", code=2)
    assert "inputs that are encoded by a payload_codec" in refused.stderr
    cli(*limit, "--concurrency", "1")


def test_a_key_that_does_not_fit_its_id_is_named(cli: CommandLine) -> None:
    """A stuck run says what is wrong: its reader has a key of this name."""
    KEYS["same"] = AesGcm.new_key()
    right = bank("same")
    KEYS["same"] = AesGcm.new_key()
    wrong, none = bank("same"), bank("k1")
    with SyncClient(cli.url, app=right) as client:
        run_id = str(client.start("wait", SECRET).run_id)
    asyncio.run(sweep(wrong, cli.url))
    why = cli("runs", "why", run_id).stdout
    assert "the key that this program has as same does not fit" in why
    with SyncClient(cli.url, app=none) as client:
        run = client.runs.get(run_id)
        with pytest.raises(PayloadLocked, match="this program has no key same, only k1"):
            _ = run.input


def test_what_is_outside_is_read_or_named(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the place in the environment it is read; else its size and its place are shown."""
    url, long = f"file://{tmp_path}/objects", "long" * 1_000
    app = App("warehouse", large_payloads=LargePayloads(url, above="2kB"))

    @app.workflow
    async def store(ctx: Context, text: str) -> str:
        return text * 2

    async def use() -> UUID:
        async with Client(cli.url, app=app) as client:
            async with await psycopg.AsyncConnection.connect(cli.url) as connection:
                run = await client.start(store, long, connection=connection)
            await sweep(app, cli.url)
            assert await run.result() == long * 2
            return run.run_id

    run_id = str(asyncio.run(use()))
    assert long not in tables(cli.url)
    shown = cli.json("runs", "show", run_id)
    assert shown["input"].startswith(f"(4 kB in {url}/payloads/{run_id}/")
    assert shown["output"].startswith(f"(8 kB in {url}/payloads/{run_id}/")
    assert "(8 kB in " in cli("runs", "log", run_id).output
    monkeypatch.setenv("HOLDFAST_LARGE_PAYLOADS", url)
    assert cli.json("runs", "show", run_id)["output"] == long * 2


@pytest.mark.parametrize(
    ("codec", "large"),
    [(None, True), (Zlib(min_bytes=64), False), (AesGcm(KEYS), False), (AesGcm(KEYS), True)],
)
async def test_an_exported_run_loses_no_payload(
    cli: CommandLine, tmp_path: Path, codec: AesGcm | Zlib | None, large: bool
) -> None:
    """What is encrypted stays so; what is an object stands in the file, which needs no store."""
    url = f"file://{tmp_path}/objects"
    kept = LargePayloads(url, above="2kB") if large else None
    app = App("library", payload_codec=codec, large_payloads=kept)

    @app.workflow
    async def lend(ctx: Context, text: str) -> str:
        if text == "fail":
            raise ValueError(SECRET)
        return await ctx.step("copy", lambda: text) + SECRET

    file = tmp_path / "run.jsonl"
    async with Client(cli.url, app=app) as client:
        for text in (SECRET, SECRET * 1_000, "fail"):
            run = await client.start(lend, text)
            await sweep(app, cli.url)
            log = [entry.event for entry in await client.runs.log(run.run_id)]
            exported = await asyncio.to_thread(cli, "runs", "export", str(run.run_id))
            assert not isinstance(codec, AesGcm) or SECRET not in exported.stdout
            file.write_text(exported.stdout)
            shutil.rmtree(tmp_path / "objects", ignore_errors=True)
            assert read_file(file, app)[1] == log
