"""Recorded logs in files: the code of today must replay them as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.client import Client, RunHandle
from holdfast.codec import encode
from holdfast.definitions.app import App
from holdfast.errors import ConfigurationError
from holdfast.events import COMPLETED, CONTINUED
from holdfast.insight.check import Check
from holdfast.insight.replayable import info_of
from holdfast.insight.run_files import read_file
from holdfast.retention.reading import write_run
from holdfast.runtime.turn.outcome import outcome
from holdfast.runtime.turn.rehearsal import replay
from holdfast.types import Event, RunRecord


class Golden:
    """Compares the logs of a test's runs with those that were recorded before, in `folder`.

    `prefix` begins the files' names. With `update`, logs are recorded.
    """

    def __init__(
        self, client: Client, apps: Sequence[App], folder: Path, prefix: str, *, update: bool
    ) -> None:
        self._client, self._apps = client, apps
        self._folder, self._prefix, self._update = folder, prefix, update

    async def __call__(self, run: RunHandle[Any], name: str | None = None) -> None:
        """Replay the log that was recorded of this run, with the code of today.

        What it calls and waits for, how it ends and what it returns is compared. Results of calls
        are taken from the log; they and values are not compared. A test with several runs gives
        each a `name`. Raises AssertionError if the code does not do what the log says, and if there
        is not such a log, or one that cannot be read.
        """
        path = self._folder / f"{self._prefix}{'' if name is None else f'.{name}'}.jsonl"
        record = (await run.get()).record
        if record.kind != "workflow":
            raise AssertionError(
                f"run {record.run_id} is one of flow {record.full_name}: there is no code to replay"
            )
        log = [entry.event for entry in await self._client.runs.log(record.run_id)]
        if self._update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{write_run(record, log)}\n", encoding="utf-8")
            print(f"recorded {path}")
        elif not path.exists():
            raise AssertionError(
                f"there is no log {path} yet: `pytest --update-golden` records it; commit it"
            )
        else:
            self._replay(path, record)

    def _replay(self, path: Path, today: RunRecord) -> None:
        app = next(each for each in self._apps if each.name == today.app)
        try:
            record, log, clock_at = read_file(path, app)
        except ConfigurationError as error:
            raise AssertionError(
                f"{path} cannot be read: {error}. Restore it, or `pytest --update-golden` records "
                "today's run in its place"
            ) from None
        if record.full_name != today.full_name:
            raise AssertionError(
                f"{path} is the log of a run of {record.full_name}, and this is one of "
                f'{today.full_name}: give it a name of its own, as in `golden(run, "refund")`'
            )
        _check(app, path, record, log, clock_at)


def _check(app: App, path: Path, record: RunRecord, log: list[Event], clock_at: int | None) -> None:
    check = Check(app)
    check.add(record, log, clock_at, str(path))
    report = check.report()
    for unchecked in report.unchecked:
        raise AssertionError(f"{unchecked.where} cannot be replayed: {unchecked.reason}")
    for finding in report.findings:
        entry = "" if finding.index is None else f", entry {finding.index}"
        line = "" if finding.file is None else f"{finding.file}:{finding.line}: "
        raise AssertionError(
            f"the code does not do what a recorded run did ({path}{entry}): {line}"
            f"{finding.reason}. Open runs like it would not continue: keep the old way for them, "
            "with `ctx.patched` or `version=`. If there are none, `pytest --update-golden` records "
            "today's run"
        )
    then, now = _given(log[-1].type, log[-1].details), _given_now(app, record, log, clock_at)
    if log[-1].type in (COMPLETED, CONTINUED) and then != now:
        what = "returns" if log[-1].type == COMPLETED else "continues with"
        raise AssertionError(
            f"with the calls of a recorded run ({path}), the code {what} {encode(now)}, and not "
            f"{encode(then)}. Open runs continue with this code: if it is right, "
            "`pytest --update-golden` records today's run"
        )


def _given_now(app: App, record: RunRecord, log: list[Event], clock_at: int | None) -> object:
    """Return what the code of an ended run gives today."""
    workflow, found = app.find(record.name, record.version), None
    for _, instance in replay(workflow, info_of(record, log, clock_at), log):
        if instance.loop.ended:
            end = outcome(instance)
            found = _given(end.kind, end.end.output if end.kind == COMPLETED else end.text)
    return found


def _given(kind: str, text: str | None) -> object:
    """Return the output of a run, or the input of the run that it continues as; else None."""
    if text is None or kind not in (COMPLETED, CONTINUED):
        return None
    given = msgspec.json.decode(text)
    return given if kind == COMPLETED else given["input"]
