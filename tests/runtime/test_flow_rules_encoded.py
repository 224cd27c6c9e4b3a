"""Errors that steps of flows are given as values, where payloads are encoded, or large."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import App, current_flow_step
from holdfast.client import Client
from holdfast.payloads import AesGcm, Codecs, LargePayloads, Zlib
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.types import ErrorInfo
from tests.runtime.desk import working
from tests.runtime.test_payloads import stored

SECRET = "card-4711"


@pytest.mark.parametrize("codec", ["zlib", "aes", "large"])
async def test_errors_are_values_and_no_output_is_taken_for_one(
    store: Store, codec: str, tmp_path: Path
) -> None:
    """Steps named as the fields of an error, and payloads with the field of the errors."""
    codecs: dict[str, Codecs] = {"zlib": Zlib(), "aes": [Zlib(), AesGcm({"k1": bytes(32)})]}
    app = App(
        "encoded",
        payload_codec=codecs.get(codec),
        large_payloads=LargePayloads(f"file://{tmp_path}", above="1kB"),
    )
    flow = app.flow("encoded", input=dict[str, object], attempts=1)
    big: dict[str, object] = {"$failed": {"data": 1}, "kind": "x", "pad": SECRET * 500}
    seen = dict[str, object]()

    @flow.step
    async def bad(run: dict[str, object]) -> str:
        raise ValueError(f"{SECRET} is refused")

    @flow.step
    async def after(bad: str) -> str:
        return bad

    @flow.step
    async def kind(run: dict[str, object]) -> str:
        return "builtins.ValueError"

    @flow.step
    async def message(kind: str) -> str:
        return "message"

    @flow.step
    async def data(kind: str) -> dict[str, object]:
        return big

    @flow.step(trigger_rule="all_done")
    async def report(
        run: dict[str, object],
        after: str | ErrorInfo,
        kind: str | ErrorInfo,
        message: str | ErrorInfo,
        data: dict[str, object] | ErrorInfo,
    ) -> list[object]:
        assert not current_flow_step().skipped("after")
        assert (kind, message, data, run) == ("builtins.ValueError", "message", big, big)
        assert isinstance(after, ErrorInfo)
        assert after.cause is not None
        return [after.message, str(after.cause)]

    @flow.step(trigger_rule="one_failed")
    async def fix(after: ErrorInfo) -> str:
        return after.message

    @flow.step(trigger_rule="always")
    async def last(bad: str | ErrorInfo | None, data: dict[str, object] | ErrorInfo | None) -> None:
        seen.update(bad=bad, data=data)

    cause = f"ValueError: {SECRET} is refused"
    async with Client(store=store, app=app) as client, working(app, store):
        assert await client.run(flow, big) == {
            "report": [f"step bad failed: {cause}", cause],
            "fix": f"step bad failed: {cause}",
        }
    assert (str(seen["bad"]).endswith(cause), seen["data"]) == (True, big)
    if codec == "aes" and isinstance(store, MemoryStore):
        assert SECRET not in stored(store)
