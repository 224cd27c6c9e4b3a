"""Check a deploy before it is made: what the code at hand would do to runs, from their logs.

Nothing is written, and no lease is taken: a role that may only read is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.definitions.app import App
from holdfast.errors import ConfigurationError, PayloadError, UnknownWorkflow
from holdfast.insight.flow_checks import flow_differences
from holdfast.insight.replayable import check_log, clocks_of_forks, info_of
from holdfast.insight.run_files import read_exported, runs_of
from holdfast.insight.timeline import read_open
from holdfast.runtime.loop.user_code import split_line
from holdfast.runtime.turn.rehearsal import Difference, DifferenceKind, Misfit, misfits, rehearse
from holdfast.store.port import Store
from holdfast.store.port.reads import noting_reads
from holdfast.types import ANY_END, Event, RunFilter, RunRecord, State, Value
from holdfast.values.moments import to_micros
from holdfast.values.names import changed_kind

FindingKind: TypeAlias = DifferenceKind | Literal["unserved"]

_OPEN: Final[tuple[State, ...]] = ("queued", "running", "waiting", "stuck", "paused")
_PAGE: Final = 200  # runs, whose logs are read in one call
_MOST_IDS: Final = 100  # of a finding


class Finding(Value, frozen=True, kw_only=True):
    """A difference between code and logs that one or more runs of a workflow have.

    Those that are `stuck` cannot continue; those that are `held` wait and start nothing new until
    the code makes a recorded call; those that `fails` would fail at once, of what their logs have;
    those that are `unserved` are of a workflow, a flow or a version that the app does not have.
    `workflow` is `app/name@version`, `runs` how many they are, `run_ids` at most 100 of them.
    `run_id`, `index` (the entry of its log, None for none) and `reason` are those of one of them.
    `file` and `line` are in the user's code.
    """

    kind: FindingKind
    workflow: str
    runs: int
    run_id: UUID
    index: int | None
    reason: str
    file: str | None = None
    line: int | None = None
    run_ids: tuple[UUID, ...] = ()


class Unchecked(Value, frozen=True):
    """A log that could not be checked: `where` is the id of its run or a place in a file."""

    where: str
    reason: str


class CheckReport(Value, frozen=True):
    """What a check has found: how many runs were replayed, and what differs, most runs first."""

    checked: int
    findings: Sequence[Finding] = ()
    unchecked: Sequence[Unchecked] = ()

    @property
    def differs(self) -> bool:
        """True if runs would not continue. One that would fail does not differ from its log."""
        return any(each.kind != "fails" for each in self.findings)


class Part(Value, frozen=True):
    """One of `count` parts of all runs, which are checked at the same time."""

    number: int = 0
    count: int = 1

    def has(self, number: int) -> bool:
        """Return True if the part has the run or the file with this number."""
        return number % self.count == self.number


class Check:
    """A check of one app, to which logs are added."""

    def __init__(self, app: App, workflows: Sequence[str] = ()) -> None:
        """Begin with none. Only runs of these workflows are checked, by default of all.

        Raises UnknownWorkflow for one that the app does not have.
        """
        self._app = app
        self._names = tuple(app.latest(name).full_name for name in workflows)
        self._checked = 0
        self._found: dict[object, Finding] = {}
        self._unchecked: list[Unchecked] = []

    def report(self) -> CheckReport:
        """Return what was found so far."""
        return merged([CheckReport(self._checked, [*self._found.values()], self._unchecked)])

    # Open runs

    async def add_open_runs(
        self,
        store: Store,
        *,
        since: datetime | None = None,
        sample: int | None = None,
        build: str | None = None,
        part: Part = Part(),
        told: Callable[[int], None] = lambda checked: None,
    ) -> None:
        """Check the runs of the app that have not ended, created `since`.

        Runs that are pinned to another build than the app's never meet this code; those of `build`
        are checked too, as they may move. Of runs of other apps, the calls of this app's activities
        are checked. With a `sample`, at most that number of each workflow and version, the newest.
        `told` hears how many were checked so far, now and then.
        """
        moment = None if since is None else to_micros(since)
        where = RunFilter(states=_OPEN, names=self._names, since=moment, limit=_PAGE)
        taken: Counter[str] = Counter()
        builds = (None, self._app.build, build)
        away = set[int]()
        while True:
            with noting_reads() as notes:
                page = await store.reads.list_runs(where)
            for number in sorted(notes.away - away):
                self._unchecked.append(Unchecked(f"shard {number}", "it is away, with its runs"))
            away |= notes.away
            runs = [run for run in page.runs if self._concerns(run) and run.build in builds]
            if sample is not None:
                runs = list(_up_to(sample, runs, taken))
            await self._add_page(store, [run for run in runs if part.has(run.run_id.int)])
            callers = [run for run in page.runs if self._may_call(run)]
            if sample is not None:
                callers = list(_up_to(sample, callers, taken))
            await self._add_callers(store, [run for run in callers if part.has(run.run_id.int)])
            told(self._checked)
            if page.cursor is None:
                return
            where = msgspec.structs.replace(where, cursor=page.cursor)

    def _concerns(self, run: RunRecord) -> bool:
        """Return True for a run of the app's workflows, or an open one of its flows."""
        if self._names and run.full_name not in self._names:
            return False
        if run.kind == "flow" and run.completed_at is not None:
            return False
        return run.app == self._app.name

    def _has_flow(self, run: RunRecord) -> bool:
        """Return True for the run of a flow that the app has: its code is not replayed."""
        return run.kind == "flow" and (run.name, run.version) in self._app.registry.flows

    def _may_call(self, run: RunRecord) -> bool:
        """Return True for the run of another app that may have an open activity of this one."""
        if self._names or run.app == self._app.name or run.kind == "flow":
            return False
        if run.state == "waiting" and run.wait is not None and ANY_END not in run.wait.awaiting:
            return False
        return bool(self._app.registry.activities)

    async def _add_callers(self, store: Store, runs: Sequence[RunRecord]) -> None:
        """Check the open activities of this app that runs of other apps have called."""
        logs = await store.read_events([(run.run_id, 0) for run in runs]) if runs else {}
        for run in runs:
            found = list[Misfit]()
            with suppress(Exception):  # a check of its own app says what cannot be read
                found = list(misfits(self._app.registry, logs[run.run_id]))
            waits = await read_open(store, run, logs[run.run_id]) if found else {}
            for each in found:
                if waits.get(each.key) is False:
                    difference = each.differ(f"activity {each.key} of this app")
                    self._add(run, difference.kind, difference.reason, difference)

    def _has_other_kind(self, run: RunRecord) -> bool:
        """Return True if the name of a workflow is one of a flow now, or the other way."""
        place, registry = (run.name, run.version), self._app.registry
        flows, workflows = registry.flows, registry.workflows
        if run.kind == "flow":
            return place in workflows and place not in flows
        return place in flows and place not in workflows

    async def _add_page(self, store: Store, concerned: Sequence[RunRecord]) -> None:
        flows = [run for run in concerned if self._has_flow(run)]
        async for run, found in flow_differences(store, self._app.registry, flows):
            if isinstance(found, str):
                self._unchecked.append(Unchecked(str(run.run_id), found))
                continue
            self._checked += 1
            if found is not None:
                self._add(run, found.kind, found.reason, found)
        runs = [run for run in concerned if not self._has_flow(run)]
        logs = await store.read_events([(run.run_id, 0) for run in runs])
        clocks = await clocks_of_forks(store, logs)
        for run in runs:
            if log := logs[run.run_id]:  # else it was deleted meanwhile
                external = await self._external(store, run, log)
                self.add(run, log, clocks.get(run.run_id), external=external)

    async def _external(self, store: Store, run: RunRecord, log: Sequence[Event]) -> set[str]:
        """Return the keys of activities that wait to be completed from outside, if it matters."""
        matters = False
        with suppress(Exception):  # the rehearsal says what cannot be read
            matters = any(misfits(self._app.registry, log))
        found = await read_open(store, run, log) if matters else {}
        return {key for key, is_external in found.items() if is_external}

    # Exported logs

    def add_files(self, paths: Iterable[Path], part: Part = Part()) -> None:
        """Check the runs of files that `holdfast runs export` or `archive export` have written."""
        for number, path in enumerate(paths):
            if not part.has(number):
                continue
            try:
                for place, lines in runs_of(path):
                    self._add_lines(place, lines)
            except ConfigurationError as error:
                self._unchecked.append(Unchecked(str(path), str(error)))

    def _add_lines(self, place: str, lines: Sequence[str]) -> None:
        try:
            run, log, clock_at = read_exported(lines, place, self._app)
        except ConfigurationError as error:
            self._unchecked.append(Unchecked(place, str(error)))
            return
        if run.app not in ("", self._app.name):
            other = f"it is a run of app {run.app!r}, and this is {self._app.name!r}"
            self._unchecked.append(Unchecked(place, other))
        elif self._concerns(run) and self._has_flow(run):
            self._checked += 1  # its name and its version
        elif self._concerns(run):
            self.add(run, log, clock_at, place)

    # One run

    def add(
        self,
        run: RunRecord,
        log: Sequence[Event],
        clock_at: int | None = None,
        place: str | None = None,
        external: Collection[str] = (),
    ) -> None:
        """Check one run. `clock_at` is that of a fork, `place` where an exported log stands.

        `external` are the keys of activities that wait to be completed from outside.
        """
        if run.kind == "flow" and not self._has_other_kind(run):
            self._checked += 1
            reason = (
                f"the app has no flow {_named(run)}: its steps wait for a worker that has; keep it "
                f"until its runs have ended: app.flow({run.name!r}, version={run.version})"
            )
            self._add(run, "unserved", reason)
            return
        if self._has_other_kind(run):
            self._checked += 1
            if run.started_at is not None:  # else a worker makes a run of the flow of it
                kind: FindingKind = "stuck" if run.kind == "workflow" else "unserved"
                self._add(run, kind, changed_kind(run.kind, _named(run)))
            return
        try:
            difference = self._rehearsed(run, log, clock_at, external)
        except UnknownWorkflow:
            difference = None
            reason = (
                f"the app has no workflow {_named(run)}: its runs wait for a worker that has; "
                f"if it has another name now, keep the old one: @app.workflow(name={run.name!r})"
            )
            self._add(run, "unserved", reason)
        except Exception as error:  # a fault of one run must not keep the others from being checked
            known = isinstance(error, PayloadError | ConfigurationError)
            reason = str(error) if known else f"it cannot be replayed: {error!r}"
            self._unchecked.append(Unchecked(place or str(run.run_id), reason))
            return
        self._checked += 1
        if difference is not None:
            self._add(run, difference.kind, difference.reason, difference)

    def _rehearsed(
        self, run: RunRecord, log: Sequence[Event], clock_at: int | None, external: Collection[str]
    ) -> Difference | None:
        check_log(log)
        app = self._app
        workflow, info = app.find(run.name, run.version), info_of(run, log, clock_at)
        awaiting = () if run.wait is None else run.wait.awaiting
        return rehearse(
            workflow,
            info,
            log,
            strict=app.strict,
            careful=app.careful,
            awaiting=awaiting,
            external=external,
        )

    def _add(
        self, run: RunRecord, kind: FindingKind, reason: str, found: Difference | None = None
    ) -> None:
        line, index = (None, None) if found is None else (found.line, found.index)
        file, number = (None, None) if line is None else split_line(line)
        finding = Finding(
            kind=kind,
            workflow=_named(run),
            runs=1,
            run_id=run.run_id,
            index=index,
            reason=reason,
            file=file,
            line=number,
            run_ids=(run.run_id,),
        )
        _put(self._found, finding)


def _named(run: RunRecord) -> str:
    return f"{run.full_name}@{run.version}"


def merged(reports: Iterable[CheckReport]) -> CheckReport:
    """Return the reports of all parts as one."""
    checked, unchecked = 0, list[Unchecked]()
    found: dict[object, Finding] = {}
    for report in reports:
        checked += report.checked
        unchecked += report.unchecked
        for each in report.findings:
            _put(found, each)
    ordered = sorted(found.values(), key=lambda each: (each.kind == "fails", -each.runs))
    return CheckReport(checked, ordered, unchecked)


def _put(found: dict[object, Finding], finding: Finding) -> None:
    """Add a finding, or its runs to one at the same line of the code."""
    same = (finding.kind, finding.workflow, finding.file, finding.line)
    known = found.get(same)
    if known is not None:
        run_ids = (*known.run_ids, *finding.run_ids)[:_MOST_IDS]
        finding = msgspec.structs.replace(known, runs=known.runs + finding.runs, run_ids=run_ids)
    found[same] = finding


def _up_to(sample: int, runs: Iterable[RunRecord], taken: Counter[str]) -> Iterator[RunRecord]:
    for run in runs:
        taken[run.handler] += 1
        if taken[run.handler] <= sample:
            yield run
