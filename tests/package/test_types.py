"""The wheel has types: a program that uses it is checked as strictly as its author likes."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from tests.docs.blocks import ROOT, read_blocks
from tests.package.installed import Installed, run

CONSUMER = """
import asyncio
from uuid import UUID

from shop import checkout

from holdfast import App, Client, RunHandle, SyncClient

app = App("consumer")


@app.job(queue="media")
async def thumbnail(path: str, size: int = 128) -> bytes:
    return path.encode()


@app.job
@app.activity
def count(path: str, *, deep: bool = False) -> int:
    return len(path)


async def main() -> None:
    async with Client() as client:
        handle: RunHandle[str] = await client.start(checkout, "ann", key="order-17")
        run_id: UUID = handle.run_id
        receipt: str = await handle.result(timeout="5m")
        picture: bytes = await client.run(thumbnail, "a.jpg", wait="5m")
        many: list[RunHandle[bytes]] = await client.start_many(thumbnail, [("a.jpg", 64)])
        named: RunHandle[int] = await client.start(count, input={"path": "a", "deep": True})
        called: bytes = await thumbnail("a.jpg", size=64)
        print(run_id, receipt, picture, many, named, called)


def synchronous() -> None:
    with SyncClient() as client:
        counted: int = client.start(count, "a.jpg", delay="5m").result()
        print(counted)


asyncio.run(main())
"""
WRONG = {
    'client.start(checkout, "ann"': "client.start(checkout, 17",
    "receipt: str": "receipt: int",
    "picture: bytes": "picture: str",
    '(thumbnail, "a.jpg", wait': "(thumbnail, 17, wait",
    '[("a.jpg", 64)]': "[(64,)]",
    '(count, "a.jpg", delay': "(count, delay",
    "size=64": "size='64'",
}
# What they export is of packages without types, or of an extra that this environment lacks.
UNTYPED = (
    "holdfast.agents.",
    "holdfast.database.",
    "holdfast.django.",
    "holdfast.insight.doctor",
    "holdfast.insight.examining",
    "holdfast.insight.server",
    "holdfast.insight.transactions",
    "holdfast.store.",
    "holdfast.tracing",
)


def write_program() -> tuple[list[str], list[str]]:
    """Write programs, and return the files: those that are right, and those with one mistake."""
    (shop,) = (each for each in read_blocks(ROOT / "README.md") if each.file == "shop.py")
    Path("shop.py").write_text(shop.text)
    Path("consumer.py").write_text(CONSUMER)
    for number, (right, wrong) in enumerate(WRONG.items()):
        assert right in CONSUMER
        Path(f"wrong{number}.py").write_text(CONSUMER.replace(right, wrong))
    return ["shop.py", "consumer.py"], [f"wrong{number}.py" for number in range(len(WRONG))]


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def test_mypy_finds_the_mistakes_of_a_program_and_no_others(installed: Installed) -> None:
    right, wrong = write_program()
    options = ("--strict", "--python-executable", str(installed.python), "--cache-dir", "cache")
    said = run(program("mypy"), *options, *right, *wrong, code=1)
    assert sorted(set(re.findall(r"^(\S+):\d+: error", said, re.MULTILINE))) == wrong


def test_pyright_finds_the_mistakes_of_a_program_and_no_others(installed: Installed) -> None:
    right, wrong = write_program()
    Path("pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    options = ("--pythonpath", str(installed.python), "--outputjson")
    said = json.loads(run(program("pyright"), *options, *right, *wrong, code=1))
    assert {Path(each["file"]).name for each in said["generalDiagnostics"]} == set(wrong)


def test_what_the_package_exports_has_types(installed: Installed) -> None:
    path = f"{installed.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    options = ("--verifytypes", "holdfast", "--ignoreexternal", "--outputjson")
    report = json.loads(run(program("pyright"), *options, env={"PATH": path}, code=1))
    symbols = report["typeCompleteness"]["symbols"]
    assert len(symbols) > 5_000
    unknown = [
        each["name"] for each in symbols if not each["isTypeKnown"] and not each["isTypeAmbiguous"]
    ]
    assert [name for name in unknown if not name.startswith(UNTYPED)] == []
