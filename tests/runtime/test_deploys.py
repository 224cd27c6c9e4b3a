"""Deploys under open runs: no effect is repeated or lost, and a check says which runs get stuck."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from holdfast import App, Client
from holdfast.insight.check import Check, CheckReport
from holdfast.retention.reading import write_run
from holdfast.testing import Environment
from holdfast.testing.plan import LoggedStore
from tests.runtime.deploys import BASES, CHANGES, Base, Change

FILE = "shop.py"


class Deploys:
    """One store, on which one version of an app after the other has its workers."""

    def __init__(self) -> None:
        self.store, self.effects = LoggedStore(), list[str]()

    def app(self, source: str) -> App:
        """Load a source."""

        def did(what: str) -> str:
            self.effects.append(what)
            return what

        module: dict[str, Any] = {"__name__": "shop", "did": did}
        exec(compile(source, FILE, "exec"), module)
        found: App = module["app"]
        return found

    def workers(self, source: str) -> Environment:
        """Make the workers of a version."""
        with patch("holdfast.testing.environment.LoggedStore", lambda _: self.store):
            return Environment(self.app(source), replay=False)

    async def begin(self, base: Base) -> UUID:
        """Start a run of a base, and let it come to where it waits."""
        if not base.served:
            async with Client(store=self.store, app=self.app(base.source)) as client:
                return (await client.start("order", base.input)).run_id
        async with self.workers(base.source) as env:
            handle = await env.client.start("order", base.input)
            await env.wait_until_idle()
            for name in base.sent:
                await handle.signal(name)
            await env.advance(base.seconds)
        return handle.run_id

    async def go_on(self, run_id: UUID, source: str) -> str:
        """Let a version continue the run for two minutes; return what state it is in."""
        async with self.workers(source) as env:
            await env.advance(120)
            return (await env.client.handle(run_id).get()).state

    async def check(self, source: str) -> CheckReport:
        check = Check(self.app(source))
        await check.add_open_runs(self.store)
        return check.report()

    async def export(self, run_id: UUID) -> str:
        async with Client(store=self.store) as client:
            run = (await client.runs.get(run_id)).record
        return write_run(run, (await self.store.read_events([(run_id, 0)]))[run_id])

    def check_exported(self, path: Path, source: str) -> CheckReport:
        check = Check(self.app(source))
        check.add_files([path])
        return check.report()


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name.replace(" ", "_"))
async def test_a_deploy_does_what_a_check_says_and_a_roll_back_heals(
    change: Change, tmp_path: Path
) -> None:
    deploys, base = Deploys(), BASES[change.base]
    run_id = await deploys.begin(base)
    assert sorted(deploys.effects) == sorted(base.before)

    report = await deploys.check(change.source)
    assert (report.checked, report.unchecked) == (1, [])
    found = [(each.kind, each.file, each.line) for each in report.findings]
    place = (FILE, change.line) if change.line else (None, None)
    assert found == ([(change.check, *place)] if change.check else []), report.findings
    log = tmp_path / "run.jsonl"
    log.write_text(await deploys.export(run_id))
    assert deploys.check_exported(log, change.source).findings == report.findings
    assert sorted(deploys.effects) == sorted(base.before), "a check has no effect"

    async with Client(store=deploys.store) as client:
        await client.handle(run_id).signal("packed")
    end = await deploys.go_on(run_id, change.source)
    assert end == change.end
    every = Counter([*base.before, *base.after])
    if end in ("stuck", "queued") or change.waits:
        assert Counter(deploys.effects) == Counter([*base.before, *change.made])
        assert await deploys.go_on(run_id, base.source) == "completed"
    else:
        every = every + Counter(change.made) - Counter(change.missing)
    assert Counter(deploys.effects) == every


def test_there_are_enough_changes() -> None:
    """The bar of a deploy matrix, with sources that differ."""
    assert len({change.source for change in CHANGES}) >= 60
