"""The examples and the tutorial's bakery, killed at each entry of their logs."""

from __future__ import annotations

import importlib
import re
import sys
import types
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast import App
from holdfast.client import Client
from holdfast.testing import Environment
from tests.docs.blocks import ROOT, read_blocks

EXAMPLES, TEXTS = ROOT / "examples", ROOT / "examples" / "texts"
NAMES = sorted(path.name for path in TEXTS.iterdir())


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


pytestmark = pytest.mark.crash_everywhere


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the example that the test's name begins with."""
    test = request.node.originalname
    modules = [path.stem for path in EXAMPLES.glob("*.py") if test.startswith(f"test_{path.stem}_")]
    name = max(modules, key=len, default="bakery")
    if name == "bakery":
        [bakery] = [
            each for each in read_blocks(ROOT / "docs/tutorial.md") if each.file == "bakery.py"
        ]
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(bakery.text, bakery.file or "", "exec"), vars(module))
        return module
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module(name)


@pytest.fixture
def holdfast_app(example: Any) -> App:
    found: App = example.app
    return found


async def test_bakery_bakes(environment: Environment, example: Any) -> None:
    handle = await environment.client.start(example.bread, "ann", key="order-1")
    await environment.advance("1m")
    await handle.signal("collected")
    assert await environment.result(handle) == "bread from dough for ann, baked 40 minutes"


async def test_wordcount_counts_each_file(environment: Environment, example: Any) -> None:
    counts = await environment.run(example.count_folder, example.Job(str(TEXTS), 0.5))
    assert [Path(each.name).name for each in counts] == NAMES
    assert all(each.words > 10 for each in counts)


async def test_approval_reminds_and_pays(environment: Environment, example: Any) -> None:
    expense = example.Expense("train ticket", Decimal("89.90"))
    handle = await environment.client.start(example.approve_expense, expense)
    await environment.advance("12s")
    await handle.signal("decision", example.Decision(approved=True, by="ann"))
    assert re.fullmatch(r"approved by ann, booked as B-\w{6}", await environment.result(handle))
    log = environment.store.logs()[handle.run_id]
    told = [each.key for each in log if each.type == "StepCompleted"]
    assert len(told) == 4, "it asks, reminds twice, and pays"


async def test_backup_copies_each_file(
    environment: Environment, example: Any, tmp_path: Path
) -> None:
    copied = await environment.run(example.back_up, example.Backup(str(TEXTS), str(tmp_path)))
    assert [each.path for each in copied] == NAMES
    assert names_in(tmp_path) == NAMES, "nothing half done is left"


@pytest.mark.crash_everywhere(most=20)
async def test_convert_asks_and_writes(
    environment: Environment, example: Any, tmp_path: Path
) -> None:
    handle = await environment.client.start(example.publish, example.Job(str(TEXTS), str(tmp_path)))
    await environment.wait_until_idle()
    (asked,) = await handle.approvals()
    values = {"title": "Texts"}
    decide = environment.client.approvals.decide
    await decide(handle.run_id, asked.key, True, by="ann", values=values)
    site = await environment.result(handle)
    assert site.verdict == "approved by ann"
    pages = names_in(tmp_path)
    assert pages == sorted(["index.html", *(f"{name}.html" for name in NAMES)])


async def test_catalogue_describes_each_file(
    environment: Environment, example: Any, tmp_path: Path
) -> None:
    report = tmp_path / "report.md"
    job = example.Job(str(TEXTS), str(report), 0.0)
    output = await environment.run(example.catalogue, job)
    assert output == {"report": report.read_text(encoding="utf-8")}


@pytest.mark.crash_everywhere(most=20)
async def test_accounts_books_each_line_once(
    environment: Environment,
    client: Client,
    example: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(example, "Client", lambda: nullcontext(client))
    statement = tmp_path / "statement.csv"
    rows = [(f"acc-{number % 2}", number) for number in range(5)]
    lines = "".join(f"{account},{number}\n" for account, number in rows)
    statement.write_text(f"account,cents\n{lines}", encoding="utf-8")
    await client.queues.create(example.QUEUE, fifo=True, visibility="10s")
    job = example.Job(str(statement), str(tmp_path), "digest", 0.0)
    booked = await environment.run(example.sort_statement, job)
    assert booked == {"acc-0": 3, "acc-1": 2}
    for account in booked:
        text = (tmp_path / f"{account}.csv").read_text(encoding="utf-8")
        assert text == "".join(f"{of},{number}\n" for of, number in rows if of == account)


async def test_embedded_core_charges_and_waits(environment: Environment, example: Any) -> None:
    handle = await environment.client.start(example.checkout, 7)
    await handle.signal("packed", "parcel-1")
    assert await environment.result(handle) == "receipt-7, parcel-1"


@pytest.mark.crash_everywhere(most=8)
async def test_agent_refunds_what_is_approved(
    environment: Environment, example: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "THINKING", 0)
    ticket = example.Ticket("my lamp is broken", "order-17", 1_000)
    handle = await environment.client.start(example.answer, ticket)
    await environment.wait_until_idle()
    (asked,) = await handle.approvals()
    await environment.client.approvals.decide(handle.run_id, asked.key, True, by="ann")
    assert await environment.result(handle) == "I have looked: order-17 is refunded."


@pytest.mark.crash_everywhere(most=20)
async def test_session_answers_each_message_once(
    environment: Environment, client: Client, example: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "THINKING", 0)
    session = client.entity(example.Session, "ann")
    assert await session.say("I have bought a lamp") == "you have bought: lamp"
    assert await session.say("and ordered an egg") == "you have bought: lamp, egg"
    assert [each.role for each in await session.history()] == ["user", "assistant"] * 2
