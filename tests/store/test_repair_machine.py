"""What people do to repair runs, in any order, on both stores, which must agree.

Runs fail with calls that their retries make again, are cancelled, continue, and leave children;
they are retried, forked, archived, deleted and restored, while others change them.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any
from uuid import UUID

import msgspec
import pytest
from agreement import TERMINAL, differences, plain
from contract.commands import FAILURE, activity, approval, child, command
from msgspec.structs import replace
from seeded import SeededMachine, act, run_seeds, some

from holdfast.insight.retries import find_last_retries, find_retries
from holdfast.store.memory.chains import first_parent
from holdfast.store.port import Store
from holdfast.store.port.run_lines import read_line
from holdfast.types import (
    ANY_END,
    ActivityEnd,
    ClaimedTask,
    Decision,
    Event,
    Finish,
    Fork,
    LeasedRun,
    NewRun,
    NewSignal,
    Reschedule,
    RunFilter,
    Suspend,
    TurnCommit,
)
from holdfast.values.ids import keyed_run_id, retry_run_id

HANDLERS = ["order@1", "order@2", "resize@0"]
QUEUES = ["default", "fast"]
PICK = range(9)  # which of the newest runs, or of the turns
DAY = 86_400.0
TASKS = ("", "", "a/", "a/b/", "a-1/")  # that make calls
NOTHING = UUID(int=0)
ERROR = json.dumps({"kind": "holdfast.errors.StepFailed", "message": "step ship failed: x"})
WHAT = (
    "done done failed failed activity terminate cancel abandon abandon keyed signal approval value"
)
THEN = "complete fail fail fail cancelled attempt continue wait wait sleep checkpoint"


class RepairsAgree(SeededMachine):
    """Lets runs fail, and repairs them."""

    def __init__(self) -> None:
        super().__init__()
        self.made = self.calls_made = 0
        self.turns: dict[UUID, tuple[str, ClaimedTask]] = {}
        self.activities: list[tuple[str, ClaimedTask]] = []
        self.written: dict[UUID, dict[Store, str]] = {}  # what the archive has, of each store

    def new_id(self) -> UUID:
        """Return the id of the next run."""
        self.made += 1
        return self.know(UUID(int=self.made))

    def know(self, run_id: UUID) -> UUID:
        """Compare a run from now on. The ids stay in order, as the logs are compared."""
        self.ids = sorted({*self.ids, run_id})
        return run_id

    def chosen(self, numbers: list[int]) -> list[UUID]:
        """Return the runs picked, the newest being 0: the ids of retries have no order."""
        rows = self.model_tables.runs
        there = sorted((rows[each].created_at, each) for each in self.ids if each in rows)
        return [there[-1 - number % len(there)][1] if there else NOTHING for number in numbers]

    def log_of(self, run_id: UUID) -> list[Event]:
        """Return the log of a run, empty if it is gone."""
        found: list[Event] = self.wait(self.model.read_events([(run_id, 0)])).get(run_id, [])
        return found

    @act(
        weight=3,
        key=(None, None, "k", "l"),
        retention=(None, 3.0, 60.0),
        timeout=(None, None, None, 30.0),
        delay=(None, None, None, 4.0),
        queue=QUEUES,
        tags=((), ("x",), ("x", "y")),
    )
    def start(
        self,
        key: str | None,
        retention: float | None,
        timeout: float | None,
        delay: float | None,
        queue: str,
        tags: tuple[str, ...],
    ) -> None:
        """Start a run, or find the one that has the key."""
        run = NewRun(
            run_id=self.new_id() if key is None else self.know(keyed_run_id("order", key)),
            name="order",
            key=key,
            queue=queue,
            priority=2,
            input=json.dumps({"n": self.made}),
            retention_seconds=retention,
            timeout_seconds=timeout,
            delay_seconds=delay,
            tags=tags,
            attributes={"stage": "new"} if tags else {},
        )
        self.do(lambda store: store.start_runs([run]))

    # Workers

    @act(weight=6, worker=("ann", "bob"), late=(0, 0, 1, 4, 11))
    def claim(self, worker: str, late: float) -> None:
        """Claim all that is due."""

        async def claimed(store: Store) -> Any:
            claims = await store.claim_tasks(worker, QUEUES, HANDLERS, 100, lease_seconds=1e6)
            return sorted(claims.tasks, key=lambda task: (task.run_id, task.key))

        self.move(late)
        for task in self.do(claimed):
            if task.key:
                self.activities.append((worker, task))
            else:
                self.turns[task.run_id] = (worker, task)

    @act(
        weight=8,
        when="turns",
        number=PICK,
        what=some(WHAT.split(), 0, 4),
        then=THEN.split(),
        target=PICK,
        seed=range(1_000_000),
    )
    def work(self, number: int, what: list[str], then: str, target: int, seed: int) -> None:
        """Commit calls of a run, and what follows."""
        run_id = sorted(self.turns)[number % len(self.turns)]
        worker, task = self.turns[run_id]
        if then != "checkpoint":
            del self.turns[run_id]
        log = self.log_of(run_id)
        if then == "cancelled" and all(each.type != "WorkflowCancelRequested" for each in log):
            then = "fail"
        [to] = self.chosen([target])
        events = [self.drawn(each, run_id, to) for each in what]
        keys = [event.key for event in [*log, *events] if event.key] or ["ship"]
        again = drawn_failures(Random(seed), keys, len(log) + len(events), then)
        last, finish = self.ended(then, run_id, again)
        if not (events := [*events, *([] if last is None else [last])]):
            return
        row = self.model_tables.runs.get(run_id)
        parent = row and row.parent
        turn = TurnCommit(
            run_id,
            task.lease_no,
            max(len(log), 1),
            [replace(event, at=self.model.time()) for event in events],
            finish,
            has_commands=True,
            touches=(to, *([first_parent(self.model_tables, parent)] if parent else ())),
            has_children=True,
        )
        self.do(lambda store: store.commit(worker, UUID(int=self.model.time()), [turn]))

    def drawn(self, what: str, run_id: UUID, to: UUID) -> Event:
        """Return a call, or the end of one, under a key of its own."""
        self.calls_made += 1
        key = f"{TASKS[self.calls_made % len(TASKS)]}call-{self.calls_made}"
        match what:
            case "done" | "failed":
                return end_of_step(key, failed=what == "failed")
            case "activity":
                return activity(key)
            case "abandon" | "terminate" | "cancel":
                return child(self.new_id(), key, parent_close=what, timeout=20.0)
            case "keyed":
                name = f"c{self.calls_made % 3}"
                child_id = self.know(keyed_run_id("order", name))
                return child(child_id, key, key=name, parent_close="abandon", retention=5.0)
            case "signal":
                said = {"signal_name": "go", "input": 1, "signal_id": f"{run_id}@0/{key}"}
                return command("SignalSent", key, run_id=str(to), **said)
            case "approval":
                return approval(key)
            case _:
                return Event("ValueSet", "v", '{"value":1}', 0)

    def ended(self, then: str, run_id: UUID, again: dict[str, Any]) -> tuple[Event | None, Any]:
        """Return the last entry of a turn, and what follows from it."""
        match then:
            case "complete":
                return Event("WorkflowCompleted", None, None, 0), Finish("completed", output="1")
            case "fail":  # older releases did not say by which calls
                details = json.dumps(again) if again["calls"] else None
                return Event("WorkflowFailed", None, details, 0), Finish("failed", error=ERROR)
            case "cancelled":
                return Event("WorkflowCanceled", None, json.dumps(again), 0), Finish("cancelled")
            case "wait":
                return Event("WorkflowTaskYielded", None, None, 0), Suspend(None, (ANY_END, "go"))
            case "sleep":
                self.calls_made += 1
                at = self.model.time() + 2_000_000
                key = f"{TASKS[self.calls_made % len(TASKS)]}timer-{self.calls_made}"
                return command("TimerScheduled", key, timer_id=key, fire_at=at), Suspend(at, ())
            case "attempt" | "continue" if run_id in self.model_tables.runs:
                return self.continued(run_id, again if then == "attempt" else None)
            case _:
                return None, None

    def continued(self, run_id: UUID, again: dict[str, Any] | None) -> tuple[Event, Finish]:
        """Let a run continue as new, or if it failed, as its next attempt."""
        new, version = str(self.new_id()), self.model_tables.runs[run_id].new.version
        said: dict[str, Any] = {"run_id": new, "version": version, "signals": [], "input": {"n": 2}}
        output: dict[str, Any] = {"run_id": new}
        if again is not None:
            again = {name: again[name] for name in ("calls", "seen", "after")}
            attempt = {"number": 1, "attempts": 5, "delay": 3.0, "run_id": str(run_id)}
            error = json.loads(FAILURE)
            said |= {"input": None, "attempt": attempt, "error": error, "again": again}
            output["attempt"] = 1
        event = command("WorkflowContinuedAsNew", "", **said)
        return event, Finish("continued", output=json.dumps(output))

    @act(when="activities", number=PICK, fails=(True, False))
    def end_activity(self, number: int, fails: bool) -> None:
        """End an attempt of an activity."""
        worker, task = self.activities.pop(number % len(self.activities))
        end = ActivityEnd(
            run_id=task.run_id,
            key=task.key,
            lease_no=task.lease_no,
            error=FAILURE if fails else None,
            result=None if fails else "3",
        )
        self.do(lambda store: store.end_activities(worker, [end]))

    # People

    @act(numbers=some(PICK, 1, 3), what=("cancel", "terminate", "pause", "resume", "signal"))
    def control(self, numbers: list[int], what: str) -> None:
        """Change runs; one does not exist, and one may stand there twice."""
        asked = [*self.chosen(numbers), NOTHING]
        signals = [NewSignal(run_id, "go", "1", "s") for run_id in asked]
        why = {"by": "eve"} if what == "resume" else {"reason": "why", "by": "eve"}

        async def change(store: Store) -> Any:
            if what == "signal":
                return await store.signal_runs(signals)
            return await getattr(store, f"{what}_runs")(asked, **why)

        self.do(change)

    @act(
        numbers=some(PICK, 1, 3),
        change=(
            Reschedule(queue="fast"),
            Reschedule(queue="default", timeout_seconds=3.0),
            Reschedule(delay_seconds=2.0),
            Reschedule(start_at=0, no_deadline=True),
            Reschedule(deadline_at=0),
        ),
        paused=(True, False, False, False),
    )
    def reschedule(self, numbers: list[int], change: Reschedule, paused: bool) -> None:
        """Change where and when runs may run; pause a queue, or more often resume it."""
        asked = [*self.chosen(numbers), NOTHING]
        self.do(lambda store: store.reschedule_runs(asked, change, reason="look"))
        self.do(lambda store: store.set_pause("queue", "default", paused=paused))

    @act(number=PICK, tags=(None, None, ("z",), ()), add=((), ("x",), ("é",)), remove=((), ("x",)))
    def label(self, number: int, tags: Any, add: Any, remove: Any) -> None:
        """Change what lists find runs by; decide an approval."""
        [run_id] = self.chosen([number])
        self.do(lambda store: store.set_tags(run_id, tags, add=add, remove=remove))
        self.do(lambda store: store.set_attributes(run_id, {"stage": "seen", "n": None}))
        for one in self.wait(self.model.list_approvals())[:1]:
            decision = Decision(run_id=one.run_id, key=one.key, decision_id="d", approved=True)
            self.do(lambda store, decision=decision: store.decide_approval(decision))

    @act(weight=4, number=PICK, failed_steps=(True, False, False))
    def retry(self, number: int, failed_steps: bool) -> None:
        """Retry a run, or try to; say before what it would repeat."""
        [run_id] = self.chosen([number])
        self.both(lambda store: store.retry_plan(run_id, failed_steps=failed_steps))
        self.retry_run(run_id, failed_steps=failed_steps)

    def retry_run(self, run_id: UUID, *, failed_steps: bool = False) -> None:
        """Retry a run under the id that callers give to its retry."""
        new_id = self.know(retry_run_id(run_id))
        fork = Fork(run_id=run_id, new_run_id=new_id, retry=True, failed_steps=failed_steps)
        self.do(lambda store: store.fork_run(fork))

    @act(number=PICK, until=(None, None, 1, 2, 3, 5, 50), given=(True, False), version=(None, 2))
    def fork(self, number: int, until: int | None, given: bool, version: int | None) -> None:
        """Fork a run, or try to."""
        [run_id] = self.chosen([number])
        ends = ("StepCompleted", "ActivityCompleted")
        keys = [each.key for each in self.log_of(run_id) if each.type in ends and each.key]
        fork = Fork(
            run_id=run_id,
            new_run_id=self.new_id(),
            until=until,
            input='{"n": 9}' if given and number % 2 else None,
            results={keys[0]: '"other"'} if keys and given else {},
            version=version,
        )
        self.do(lambda store: store.fork_run(fork))

    # Time, deletion and the archive

    @act(weight=2, seconds=(0.5, 2, 5, 31, 61, 3600, 3 * DAY))
    def sweep(self, seconds: float) -> None:
        """Let time pass, end what is past its deadline, and delete what is due."""

        async def foreseen(store: Store) -> Any:
            return [(share.name, share.due, share.kept) for share in await store.preview_sweep()]

        self.move(seconds)
        self.do(lambda store: store.time_out_runs(limit=100))
        self.both(foreseen)
        self.do(lambda store: store.sweep_runs())

    @act(weight=2, number=PICK, tagged=(True, False), retried=(True, False, False))
    def archive(self, number: int, tagged: bool, retried: bool) -> None:
        """Write what is due, and delete it; others may come in between."""

        async def lease(store: Store) -> Any:
            return (await store.lease_due_runs(limit=3)).runs

        leased: list[LeasedRun] = self.do(lease)
        asked = {run.run_id: None for run in leased}
        found = {each: self.wait(each.export_runs(asked)) for each in (self.model, self.other)}
        for run_id in asked:
            one, two = (normal(each.lines[run_id]) for each in found.values())
            assert one == two, "\n".join(differences(two, one))
            self.written[run_id] = {store: each.lines[run_id] for store, each in found.items()}
        if leased and tagged:
            changed = leased[number % len(leased)].run_id
            self.do(lambda store: store.set_tags(changed, None, add=["new"], remove=[]))
        if leased and retried:
            self.retry_run(leased[number % len(leased)].run_id)

        async def delete(store: Store) -> Any:
            labels = found[store].labels
            runs = [replace(run, labels=labels[run.run_id]) for run in leased]
            return await store.delete_archived(runs)

        self.do(delete)

    @act(when="written", number=PICK, kept=(3.0, DAY), crossed=(True, False))
    def restore(self, number: int, kept: float, crossed: bool) -> None:
        """Take a run back from the archive, also from what the other store has written."""
        written = self.written[sorted(self.written)[number % len(self.written)]]

        async def restored(store: Store) -> Any:
            [line] = (text for by, text in written.items() if (by is store) != crossed)
            return await store.restore_run([line], retention_seconds=kept)

        self.do(restored)

    # Looking

    def check(self) -> None:
        """Compare all runs and logs, and check what must hold of them."""

        async def everything(store: Store) -> Any:
            runs = await store.get_runs(self.ids)
            logs = await store.read_events([(run_id, 0) for run_id in runs])
            return [*map(shown, runs.values())], logs_shown(logs)

        runs, logs = self.both(everything)
        for run in runs:
            types = [kind for kind, *_ in logs[run.run_id]]
            assert TERMINAL.isdisjoint(types[:-1])
            assert (types[-1] in TERMINAL) == (run.status != "running") == (run.wait is None)

    @act(
        states=((), ("queued",), ("waiting",), ("failed", "timed_out"), ("paused",)),
        tags=((), ("x",)),
        key=(None, "k", "c1"),
    )
    def look(self, states: Any, tags: Any, key: str | None) -> None:
        """List runs, and find those that others continued or were retried as."""
        where = RunFilter(states=states, tags=tags, key=key, names=("order",), limit=1000)

        async def found(store: Store) -> Any:
            page = await store.list_runs(where)
            return sorted((run.run_id, run.state, run.key) for run in page.runs), page.cursor

        self.both(found)
        self.both(lambda store: store.get_sweeper())
        self.both(lambda store: store.newest_runs([*self.ids, NOTHING]))
        self.both(lambda store: find_retries(store, self.ids, payloads=False))
        self.both(lambda store: find_last_retries(store, self.ids))


def end_of_step(key: str, *, failed: bool) -> Event:
    """Return the end of a step."""
    end = {"error": json.loads(FAILURE)} if failed else {"result": {"n": 1}}
    kind = "StepFailed" if failed else "StepCompleted"
    return command(kind, key, name=key, args=1, attempt=1, **end)


def drawn_failures(chance: Random, keys: list[str], length: int, then: str) -> dict[str, Any]:
    """Draw what a run's end says of the calls that a retry makes again."""
    calls, after, handling = (
        sorted(chance.sample(keys, min(chance.randint(0, 2), len(keys)))) for _ in range(3)
    )
    if not calls and then != "cancelled":  # an error of the code's own
        return {"calls": [], "seen": 0, "after": []}
    after, handling = (sorted({*each} - {*calls}) for each in (after, handling))
    seen = chance.randint(0, length)
    return {"calls": calls, "seen": seen, "after": after, "handling": handling}


def shown(run: Any) -> Any:
    """Return a run with its output as PostgreSQL writes it."""
    return replace(run, output=json.dumps(json.loads(run.output or "null")))


def logs_shown(logs: dict[UUID, list[Event]]) -> dict[UUID, Any]:
    """Return what logs say."""
    return {run_id: [unordered(plain(event)) for event in log] for run_id, log in logs.items()}


def normal(line: str) -> Any:
    """Return what a line says: the stores write moments and numbers in different texts."""
    found = msgspec.json.decode(msgspec.json.encode(read_line(line)))
    return found | {"events": [unordered((each, each["details"])) for each in found["events"]]}


def unordered(entry: Any) -> Any:
    """Return an entry without the order of the calls that a retry makes again."""
    for details in entry:
        match details:
            case {"after": [*after]}:
                details["after"] = sorted(after)
            case _:
                pass
    return entry


@pytest.mark.timeout(600)
def test_both_stores_repair_alike_whatever_is_asked(module_database_url: str) -> None:
    run_seeds(RepairsAgree, module_database_url, seeds=6, steps=50)
