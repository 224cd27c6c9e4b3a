"""The fixture `golden`: logs in files, which the code of today must replay."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast.testing.golden  # noqa: F401  # else each inner run would import it again

pytest_plugins = ["pytester"]

SHOP = """
import asyncio

from holdfast import App, Context

app = App("shop")
flow = app.flow("flow")


@flow.step
def only() -> int:
    return 1


@app.step
async def charge(customer: str) -> str:
    return f"receipt-{customer}"


@app.step
async def pack(customer: str) -> None: ...


@app.workflow
async def checkout(ctx: Context, customer: str) -> str:
    receipt = await charge(customer)
    await asyncio.sleep(60)
    await pack(customer)
    return receipt


@app.workflow
async def refund(ctx: Context, customer: str) -> None:
    await charge(customer)
"""
TESTS = """
import pytest
import shop


@pytest.fixture
def holdfast_app():
    return shop.app


async def test_checkout(environment, golden):
    handle = await environment.client.start(shop.checkout, "ann")
    await environment.result(handle)
    await golden(handle)


@pytest.mark.parametrize("customer", ["ann/bob"])
async def test_names(environment, golden, customer):
    for name in ("one", "two"):
        handle = await environment.client.start(shop.refund, customer)
        await environment.result(handle)
        await golden(handle, name)
"""
WRONG = """
async def test_flow(environment, golden):
    handle = await environment.client.start(shop.flow)
    await environment.result(handle)
    await golden(handle)


async def test_swapped(environment, golden):
    for workflow in (shop.checkout, shop.refund):
        handle = await environment.client.start(workflow, "ann")
        await environment.result(handle)
        await golden(handle)
"""


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, *options: str) -> str:
    told = ("-p", "holdfast.pytest", "-p", "no:cacheprovider", "-rA")
    return pytester.runpytest_inprocess(*told, *options).stdout.str()


def recorded(pytester: pytest.Pytester) -> dict[str, str]:
    folder = Path(pytester.path, "golden")
    return {path.name: path.read_text() for path in folder.iterdir()} if folder.exists() else {}


def test_a_log_is_recorded_replayed_and_recorded_again(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(shop=SHOP, test_shop=TESTS)
    said = run(pytester)
    assert "2 failed" in said, said
    assert "test_shop.test_checkout.jsonl yet: `pytest --update-golden` records it" in said
    assert recorded(pytester) == {}

    said = run(pytester, "--update-golden")
    assert "2 passed" in said, said
    first = recorded(pytester)
    names = ["test_checkout", "test_names-ann-bob.one", "test_names-ann-bob.two"]
    assert sorted(first) == [f"test_shop.{name}.jsonl" for name in names]
    run(pytester, "--update-golden")
    assert recorded(pytester) == first, "the same run has the same log each time"

    pytester.makepyfile(shop=SHOP.replace("    await pack(customer)\n", ""))
    said = run(pytester)
    assert "1 failed, 1 passed" in said, said
    assert "the code does not do what a recorded run did (" in said
    assert "test_shop.test_checkout.jsonl, entry " in said
    assert "does not call pack" in said or "pack" in said
    pytester.makepyfile(shop=SHOP.replace("    return receipt\n", "    return receipt.upper()\n"))
    said = run(pytester)
    assert "1 failed, 1 passed" in said, said
    assert 'the code returns "RECEIPT-ANN", and not "receipt-ann". Open runs continue' in said
    pytester.makepyfile(shop=SHOP.replace('f"receipt-', 'f"other-'))
    assert "2 passed" in run(pytester), "what a step returns is in the log"
    pytester.makepyfile(shop=SHOP.replace("charge", "pay"))
    said = run(pytester)
    assert "it does not call charge, timer, pack, and calls pay instead" in said, said
    assert "test_shop.test_checkout.jsonl, entry 1): " in said
    line = SHOP.strip().splitlines().index("    receipt = await charge(customer)") + 1
    assert f"shop.py:{line}: a replay" in said
    assert "2 passed" in run(pytester, "--update-golden")
    assert "2 passed" in run(pytester)


OTHERS = """
from dataclasses import dataclass

import pytest
from holdfast import App, Context

app = App("shop")


@dataclass
class Total:
    cents: int
    count: int = 1


@app.workflow
async def count(ctx: Context, number: int) -> Total:
    if number < 2:
        ctx.continue_as_new(number + 1)
    return Total(number)


@app.workflow
async def fail(ctx: Context) -> None:
    raise KeyError("lamp")


@app.workflow
async def wait(ctx: Context) -> str:
    await ctx.wait_for_signal("never")
    return "now"


@pytest.fixture
def holdfast_app():
    return app


@pytest.mark.parametrize("workflow, input", [(count, 1), (count, 2), (fail, None), (wait, None)])
async def test_run(environment, golden, workflow, input):
    handle = await environment.client.start(workflow, *([] if input is None else [input]))
    await environment.advance("1h")
    await golden(handle)
"""


@pytest.mark.parametrize(
    ("old", "new", "failed"),
    [
        ("number + 1", "number + 2", 1),
        ("return Total(number)", "return Total(number, 2)", 1),
        ("    count: int = 1\n", "    count: int = 1\n    rest: int = 0\n", 1),
        ('KeyError("lamp")', 'KeyError("vase")', 0),
        ('return "now"', 'return "then"', 0),
    ],
)
def test_what_a_run_gives_is_compared_if_it_has_ended(
    pytester: pytest.Pytester, old: str, new: str, failed: int
) -> None:
    pytester.makepyfile(test_others=OTHERS)
    assert "4 passed" in run(pytester, "--update-golden")
    assert "4 passed" in run(pytester)
    assert OTHERS.count(old) == 1
    pytester.makepyfile(test_others=OTHERS.replace(old, new))
    said = run(pytester)
    assert (f"{failed} failed, {4 - failed} passed" if failed else "4 passed") in said, said


def test_a_file_that_is_no_log_of_the_run_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(shop=SHOP, test_shop=TESTS + WRONG)
    run(pytester, "--update-golden")
    cut = Path(pytester.path, "golden", "test_shop.test_checkout.jsonl")
    cut.write_text(cut.read_text()[:200])
    said = run(pytester)
    assert "3 failed, 1 passed" in said, said
    assert "test_shop.test_checkout.jsonl cannot be read: it is cut off" in said
    assert "is the log of a run of shop/refund, and this is one of shop/checkout" in said
    assert "is one of flow shop/flow: there is no code to replay" in said


CLASSES = """
import pytest
import shop


@pytest.fixture
def holdfast_app():
    return shop.app


async def start(environment, golden, workflow):
    handle = await environment.client.start(workflow, "ann")
    await environment.result(handle)
    await golden(handle)


class TestOne:
    async def test_same(self, environment, golden):
        await start(environment, golden, shop.checkout)


class TestOther:
    async def test_same(self, environment, golden):
        await start(environment, golden, shop.refund)
"""


def test_tests_of_one_name_in_two_classes_have_logs_of_their_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(shop=SHOP, test_shop=CLASSES)
    assert "2 passed" in run(pytester, "--update-golden")
    names = ["TestOne-test_same", "TestOther-test_same"]
    assert sorted(recorded(pytester)) == [f"test_shop.{name}.jsonl" for name in names]
    assert "2 passed" in run(pytester)
