"""What a start says, checked before a run exists."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast
from uuid import uuid4

import pytest

from holdfast.definitions.app import App
from holdfast.definitions.starts import PreparedStart, StartOptions, prepare
from holdfast.errors import (
    ConfigurationError,
    InvalidInput,
    InvalidName,
    PayloadError,
    UnknownWorkflow,
)
from holdfast.runtime.code.context import Context
from holdfast.values.ids import keyed_run_id
from holdfast.values.moments import checked_micros

app = App("shop")
DAY = 86_400


@app.workflow(retention=None)
async def forever(ctx: Context) -> None: ...


@app.workflow(retention="2000d")
async def long(ctx: Context, n: int) -> None: ...


@app.workflow
async def short(ctx: Context) -> None: ...


def launch(workflow: Any = "plain", **options: Any) -> PreparedStart:
    known = StartOptions.__optional_keys__
    return prepare(workflow, None, cast(StartOptions, options), known)


@app.step
async def charge(cents: int) -> None: ...


async def undecorated(ctx: Context) -> None: ...


@pytest.mark.parametrize("thing", [charge, undecorated, 7])
def test_only_a_workflow_or_its_name_is_started(thing: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"under @app\.workflow"):
        launch(thing)


@pytest.mark.parametrize(
    ("workflow", "wish", "days"),
    [
        ("plain", "1h", 1 / 24),
        ("plain", timedelta(days=900), 365),
        (short, None, 30),
        (forever, None, 365),
        (long, None, 365),
        (long, 0, 0),
    ],
)
def test_retention_is_clamped(workflow: Any, wish: Any, days: float) -> None:
    """B8."""
    assert launch(workflow, retention=wish).template.retention_seconds == days * DAY


def test_a_name_alone_leaves_the_retention_to_the_database() -> None:
    """B8. The workers of the workflow have declared it there."""
    assert launch().template.retention_seconds is None


def test_the_environment_sets_the_longest_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    """B8."""
    monkeypatch.setenv("HOLDFAST_MAX_RETENTION_DAYS", "10")
    assert launch(short).template.retention_seconds == 10 * DAY
    assert launch(retention="9d").template.retention_seconds == 9 * DAY
    monkeypatch.setenv("HOLDFAST_MAX_RETENTION_DAYS", "ten")
    with pytest.raises(ConfigurationError, match="HOLDFAST_MAX_RETENTION_DAYS"):
        launch()


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 5},
        {"priority": -1},
        {"version": 0},
        {"delay": "soon"},
        {"delay": -1},
        {"timeout": float("inf")},
        {"delay": "1s", "start_at": datetime.now(UTC)},
        {"start_at": datetime(2026, 1, 1)},
        {"tags": "one"},
        {"retention": "a while"},
    ],
)
def test_an_option_that_cannot_work_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        launch(**options)


@pytest.mark.parametrize(
    "options", [{"tags": ["\0"]}, {"tags": ["\ud800"]}, {"tags": [1]}, {"headers": {"a": "\0"}}]
)
def test_text_that_cannot_be_stored_is_refused(options: dict[str, object]) -> None:
    """Trap 20."""
    with pytest.raises(InvalidInput):
        launch(**options)


def test_an_option_that_is_not_known_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        launch(colour="red")


def test_names_keep_to_their_alphabet() -> None:
    with pytest.raises(InvalidName):
        launch("a b")
    with pytest.raises(InvalidName):
        launch(queue="a/b")


def test_a_key_makes_the_id() -> None:
    """B5."""
    assert launch().run(None, key="ä").run_id == keyed_run_id("plain", "ä")
    assert launch().run(None).run_id != launch().run(None).run_id
    with pytest.raises(ConfigurationError, match="either"):
        launch().run(None, key="a", run_id=uuid4())
    for key in ("\0", "\ud800"):
        with pytest.raises(InvalidInput):
            launch().run(None, key=key)


def test_as_many_keys_as_inputs_are_required() -> None:
    assert [run.key for run in launch().runs([1, 2], ["a", "b"])] == ["a", "b"]
    orders = {"a": 1, "b": 2}
    assert [run.key for run in launch().runs(orders.values(), orders)] == ["a", "b"]
    with pytest.raises(InvalidInput, match="keys: 2 are needed, one for each input, not 1"):
        launch().runs([1, 2], ["a"])


def test_a_bad_input_is_named_by_its_place() -> None:
    """Trap 20."""
    with pytest.raises(InvalidInput, match=r"input 1: .*int"):
        launch(long).runs([1, "2"], None)
    with pytest.raises(PayloadError, match="input 2"):
        launch().runs([1, 2, "\0"], ["a", "b", "c"])


def test_an_app_knows_its_workflows_by_name() -> None:
    """B7."""
    found = prepare("long", app, {}, StartOptions.__optional_keys__)
    assert found.workflow is long
    with pytest.raises(UnknownWorkflow):
        prepare("other", app, {}, StartOptions.__optional_keys__)


def test_moments_are_exact() -> None:
    at = datetime(2026, 7, 1, 12, 0, 0, 123_457, timezone(timedelta(hours=2)))
    assert checked_micros(at) == 1_782_900_000_123_457
