"""S14. Random operations on both stores at once: they must answer alike.

The in-memory store is the model. Whatever the operations, a log has neither gaps nor
duplicates, nothing follows an end, ended runs have no tasks, and lease numbers only grow.
"""

from __future__ import annotations

from uuid import UUID

import hypothesis.strategies as st
import pytest
from agreement import Agreement, all_pages, decoded_values, run_machine, sorted_unserved
from clocks import recent_events
from drawn import (
    HANDLERS,
    QUEUES,
    attributes,
    changes,
    ends,
    filters,
    middles,
    offsets,
    payloads,
    pick,
    picks,
    rarely,
    some_handlers,
    some_queues,
    workers,
)
from hypothesis.stateful import initialize, precondition, rule
from machine_commands import CommandsAgree

from holdfast.errors import RunExists
from holdfast.events import COMMANDS
from holdfast.types import (
    ANY_END,
    AttributeValue,
    Event,
    Finish,
    Lease,
    NewRun,
    NewSignal,
    Release,
    RunFilter,
    Suspend,
    TurnCommit,
    update_topic,
)

SECOND = 1_000_000


class StoresAgree(Agreement):
    """Does everything on the model and on the other store, and compares."""

    @initialize(name=st.sampled_from(["order", "refund"]))
    def begin(self, name: str) -> None:
        """Start runs and lease them: an empty store has little to disagree about."""
        for queue in QUEUES:
            self.start(f"{name}@1", queue, 2, "1", {"n": 1}, None, None, "client/1", False)
        self.claim("ann", 0, QUEUES, HANDLERS, 100, 40.0, 0.0, 5)

    # Callers

    @rule(
        handler=st.sampled_from(HANDLERS),
        queue=st.sampled_from(QUEUES),
        priority=st.integers(0, 4),
        payload=payloads,
        attributes=attributes,
        delay=st.sampled_from([None, None, 5.0]),
        timeout=st.sampled_from([None, None, 10.0, 100.0]),
        waiter=st.sampled_from([None, "client/1"]),
        again=rarely,
    )
    def start(
        self,
        handler: str,
        queue: str,
        priority: int,
        payload: str,
        attributes: dict[str, AttributeValue],
        delay: float | None,
        timeout: float | None,
        waiter: str | None,
        again: bool,
    ) -> None:
        """Start a run, twice in one call; sometimes one that exists."""
        name, version = handler.split("@")
        run = NewRun(
            run_id=self.ids[0] if again else self.new_id(),
            name=name,
            version=int(version),
            queue=queue,
            priority=priority,
            input=payload,
            delay_seconds=delay,
            timeout_seconds=timeout,
            retention_seconds=86_400.0,
            tags=(queue, name),
            attributes=attributes,
            headers={"traceparent": name},
            waiter=waiter,
        )
        try:
            answers, _ = self.do(lambda store: store.start_runs([run, run]))
        except RunExists:
            assert again, "the id is new"
        else:
            assert [answer.created for answer in answers] == [not again, False]

    @rule(
        numbers=picks,
        name=st.sampled_from(["packed", "paid"]),
        payload=payloads,
        signal_id=st.sampled_from([None, None, "s-1", "s-2"]),
    )
    def signal(self, numbers: list[int], name: str, payload: str, signal_id: str | None) -> None:
        """Send signals, also twice to one run."""
        signals = [NewSignal(run_id, name, payload, signal_id) for run_id in self.chosen(numbers)]
        self.do(lambda store: store.signal_runs(signals))

    @rule(number=pick, changes=changes)
    def set_attributes(self, number: int, changes: dict[str, AttributeValue | None]) -> None:
        """Change what lists find a run by, open or ended."""
        [run_id] = self.chosen([number])
        self.do(lambda store: store.set_attributes(run_id, changes))
        self.do(lambda store: store.set_tags(run_id, None, add=["more"], remove=["fast"]))

    @rule(number=pick, terminate=rarely)
    def stop(self, number: int, terminate: bool) -> None:
        """Cancel, or terminate; an id that does not exist is among them."""
        asked = [*self.chosen([number]), UUID(int=0)]
        if terminate:
            self.do(lambda store: store.terminate_runs(asked, reason="no"))
        else:
            self.do(lambda store: store.cancel_runs(asked, reason="no"))

    @rule(numbers=picks, forget=rarely)
    def wait_for_end(self, numbers: list[int], forget: bool) -> None:
        """Register for ends, or think better of it."""
        if forget:
            self.do(lambda store: store.forget_waits("client/3"))
        run_ids = self.chosen(numbers)
        self.do(lambda store: store.wait_for_end("client/3", run_ids))

    # Workers

    @rule(
        worker=workers,
        late=st.sampled_from([0, 0, 0.25, 4, 41]),
        queues=some_queues,
        handlers=some_handlers,
        limit=st.sampled_from([100, 100, 1]),
        lease=st.sampled_from([4.0, 40.0]),
        ahead=st.sampled_from([0.0, 0.0, 3.0]),
        max_attempts=st.sampled_from([2, 5]),
    )
    def claim(
        self,
        worker: str,
        late: float,
        queues: tuple[str, ...],
        handlers: tuple[str, ...],
        limit: int,
        lease: float,
        ahead: float,
        max_attempts: int,
    ) -> None:
        """Claim tasks; of equally old ones, all: which of them come first is open."""
        self.move(late)
        limit = 100 if self.some_are_equally_old() else limit
        claims = self.do(
            lambda store: store.claim_tasks(
                worker,
                queues,
                handlers,
                limit,
                lease_seconds=lease,
                ahead_seconds=ahead,
                max_attempts=max_attempts,
            )
        )
        self.held += [(worker, task) for task in claims.tasks]

    @rule(worker=workers, late=st.sampled_from([0, 0.2, 0.25, 5]))
    def claim_all(self, worker: str, late: float) -> None:
        """Claim whatever there is."""
        self.claim(worker, late, QUEUES, HANDLERS, 100, 40.0, 0.0, 5)

    @precondition(lambda self: self.held)
    @rule(numbers=picks, events=middles, off=offsets, wrong_lease=rarely, behind=st.booleans())
    def checkpoint(
        self, numbers: list[int], events: list[Event], off: int, wrong_lease: bool, behind: bool
    ) -> None:
        """Commit steps and the like, of several runs at once; behind what others wrote, or not."""
        self.commit(numbers, events, None, off, wrong_lease, behind)

    @precondition(lambda self: self.held)
    @rule(
        numbers=picks,
        events=middles,
        seconds=st.sampled_from([None, -5, 0, 0, 3, 60]),
        awaiting=st.sampled_from(
            [(), ("packed",), ("packed", "paid"), (ANY_END, update_topic("packed"))]
        ),
        off=offsets,
    )
    def suspend(
        self,
        numbers: list[int],
        events: list[Event],
        seconds: int | None,
        awaiting: tuple[str, ...],
        off: int,
    ) -> None:
        """Commit turns that end in a wait."""
        visible_at = None if seconds is None else self.model.time() + seconds * SECOND
        self.commit(numbers, events, Suspend(visible_at, awaiting), off)

    @precondition(lambda self: self.held)
    @rule(numbers=picks, end=ends, events=middles, off=offsets, wrong_lease=rarely)
    def finish(
        self,
        numbers: list[int],
        end: tuple[Event, Finish],
        events: list[Event],
        off: int,
        wrong_lease: bool,
    ) -> None:
        """Commit turns that end their runs."""
        last, then = end
        self.commit(numbers, [*events[1:], last], then, off, wrong_lease)

    def commit(
        self,
        numbers: list[int],
        events: list[Event],
        then: Suspend | Finish | None,
        off: int,
        wrong_lease: bool = False,
        behind: bool = False,
    ) -> None:
        """Commit at the end of the log or beside it, by leases that stand or do not."""
        held, now = self.leases(numbers), self.model.time()
        logs = self.wait(self.model.read_events([(task.run_id, 0) for _, task in held]))
        turns = [
            TurnCommit(
                run_id=task.run_id,
                lease_no=task.lease_no + wrong_lease,
                expected=max(len(logs[task.run_id]) + off, 1),
                events=[Event(event.type, event.key, event.details, now) for event in events],
                then=then,
                has_commands=any(event.type in COMMANDS for event in events),
                touches=self.parents(task.run_id),
                has_children=bool(self.model_tables.children[task.run_id]),
                after_others=behind,
            )
            for _, task in held
        ]
        self.calls.append((held[0][0], UUID(int=len(self.calls)), turns))
        self.commit_again(0)

    @precondition(lambda self: self.calls)
    @rule(number=pick)
    def commit_again(self, number: int) -> None:
        """Repeat a commit, whatever has happened since."""
        call = self.calls[-1 - number % len(self.calls)]
        self.do(lambda store: store.commit(*call))

    @precondition(lambda self: self.held)
    @rule(
        number=pick,
        seconds=st.sampled_from([None, 0, 5]),
        stuck=st.sampled_from([None, "why", "why"]),
    )
    def release(self, number: int, seconds: int | None, stuck: str | None) -> None:
        """Give a task back, which may be another's by now."""
        [(worker, task)] = self.leases([number])
        visible_at = None if seconds is None else self.model.time() + seconds * SECOND
        release = Release(task.run_id, task.key, task.lease_no, visible_at, stuck)
        self.do(lambda store: store.release_tasks(worker, [release]))

    @precondition(lambda self: self.held)
    @rule(numbers=picks)
    def heartbeat(self, numbers: list[int]) -> None:
        """Renew leases, some of them another's."""
        held = self.leases(numbers)
        info = self.info(held[0][0])
        renewed = [Lease(t.run_id, t.key, t.lease_no, t.log_length) for _, t in held]
        self.do(lambda store: store.heartbeat(info, renewed, lease_seconds=4.0))

    # Maintenance and time

    @rule(seconds=st.sampled_from([0.1, 0.3, 1, 4, 5, 41, 101]))
    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.move(seconds)

    @rule(limit=st.sampled_from([1, 100]))
    def time_out(self, limit: int) -> None:
        """End what is past its deadline."""
        self.do(lambda store: store.time_out_runs(limit=limit))

    @rule(
        observer=st.sampled_from([None, "ann", "bob"]),
        seconds=st.sampled_from([0.5, 4.5, 30.0]),
        named=st.sampled_from([(), (), ("bob",)]),
    )
    def reap(self, observer: str | None, seconds: float, named: tuple[str, ...]) -> None:
        """Forget workers."""
        self.do(
            lambda store: store.reap_workers(
                observer=observer, silent_seconds=seconds, worker_ids=named
            )
        )

    # Queries

    @rule(where=filters)
    def look_around(self, where: RunFilter) -> None:
        """Ask what is not compared after every step."""
        self.both(lambda store: all_pages(store, where))
        self.both(lambda store: store.list_workers())
        self.both(sorted_unserved)
        self.both(lambda store: recent_events(store, since=self.began_at + SECOND, limit=7))
        self.both(lambda store: decoded_values(store, self.ids))


@pytest.mark.timeout(900)  # a failure is reduced to the fewest steps, which takes its time
@pytest.mark.parametrize("machine", [StoresAgree, CommandsAgree])
def test_both_stores_answer_alike_whatever_is_asked(
    module_database_url: str, machine: type[Agreement]
) -> None:
    """S14, S5, S7, S10 to S12, T4, T5. Also traps 8, 10, 14, 16, 23 and 32: stale leases,
    repeated calls, poisoned runs, trees that are stopped.
    """
    run_machine(machine, module_database_url, examples=70, steps=40)
