"""The part of a state machine in which people do things to runs while they live."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
from agreement import Agreement, plain
from clocks import recent_events
from drawn import payloads, pick, picks, rarely
from hypothesis.stateful import rule

from holdfast.errors import InvalidInput
from holdfast.store.port import Store
from holdfast.types import Decision, Fork, NewSignal, Reschedule, Scope


class People(Agreement):
    """Decides approvals, signals, pauses, stops and forks, on both stores."""

    @rule(number=pick, decided=pick, approved=st.booleans(), values=payloads)
    def decide(self, number: int, decided: int, approved: bool, values: str) -> None:
        """Decide an approval, or what is none; sometimes by a decision that was taken."""
        found = self.wait(self.model.list_approvals())
        keys = [(approval.run_id, approval.key) for approval in found]
        keys += [(entry.run_id, entry.event.key) for entry in self.decisions()]
        keys.append((self.chosen([number])[0], "none"))
        run_id, key = keys[number % len(keys)]
        decision = Decision(
            run_id=run_id,
            key=key,
            decision_id=f"d-{decided % 2}",
            approved=approved,
            by="eve" if approved else None,
            values=values,
        )
        with suppress(InvalidInput):  # values are an object
            self.do(lambda store: store.decide_approval(decision))

    def decisions(self) -> list[Any]:
        """Return what was decided so far."""
        entries = self.wait(recent_events(self.model, since=0, limit=100_000))
        return [entry for entry in entries if entry.event.type == "ApprovalResolved"]

    @rule(numbers=picks, name=st.sampled_from(["packed", "rename"]), update_id=pick)
    def update(self, numbers: list[int], name: str, update_id: int) -> None:
        """Send signals and updates."""
        updates = [
            NewSignal(run_id, name, "[1]", f"s-{update_id}", update_id % 2 == 1, "client/9")
            for run_id in self.chosen(numbers)
        ]
        self.do(lambda store: store.signal_runs(updates))

    @rule(numbers=picks, pause=st.sampled_from([True, False, False]))
    def pause(self, numbers: list[int], pause: bool) -> None:
        """Pause runs, or resume them; one may stand there twice, and one that does not exist."""
        asked = [*self.chosen(numbers), UUID(int=0)]
        if pause:
            self.do(lambda store: store.pause_runs(asked, reason="look"))
        else:
            self.do(lambda store: store.resume_runs(asked))

    @rule(
        numbers=picks,
        change=st.sampled_from(
            [
                Reschedule(queue="fast"),
                Reschedule(queue="slow", timeout_seconds=30.0),
                Reschedule(delay_seconds=2.0),
                Reschedule(start_at=0, no_deadline=True),
            ]
        ),
    )
    def reschedule(self, numbers: list[int], change: Reschedule) -> None:
        """Change where and when runs may run."""
        asked = [*self.chosen(numbers), UUID(int=0)]
        self.do(lambda store: store.reschedule_runs(asked, change, reason="look"))

    @rule(
        place=st.sampled_from(
            [("queue", "fast"), ("queue", "slow"), ("workflow", "order"), ("workflow", "resize")]
        ),
        paused=rarely,
    )
    def set_pause(self, place: tuple[Scope, str], paused: bool) -> None:
        """Pause a queue or a workflow, or more often, resume it."""
        self.do(lambda store: store.set_pause(*place, paused=paused, reason="look"))

    @rule(numbers=picks, terminate=st.booleans())
    def stop(self, numbers: list[int], terminate: bool) -> None:
        """Cancel or end runs, perhaps with their children or parents."""
        asked = self.chosen(numbers)
        if terminate:
            self.do(lambda store: store.terminate_runs(asked, reason="no"))
        else:
            self.do(lambda store: store.cancel_runs(asked, reason="no"))

    @rule(
        number=pick,
        until=st.sampled_from([None, None, 1, 3, 5, 0, 50]),
        retry=st.booleans(),
        payload=payloads,
        result=st.sampled_from([None, None, "charge", "none"]),
        again=rarely,
    )
    def fork(
        self,
        number: int,
        until: int | None,
        retry: bool,
        payload: str,
        result: str | None,
        again: bool,
    ) -> None:
        """Fork a run, or try to."""
        [run_id] = self.chosen([number])
        fork = Fork(
            run_id=run_id,
            new_run_id=self.ids[0] if again else self.new_id(),
            until=None if retry else until,
            retry=retry,
            input=payload if number % 2 else None,
            results={result: payload} if result else {},
            version=number % 3 or None,
        )
        self.do(lambda store: store.fork_run(fork))

    # Queries

    @rule(number=pick)
    def look_at_orders(self, number: int) -> None:
        """Ask what is not compared after every step."""
        [run_id] = self.chosen([number])
        self.both(approvals_by_age)
        self.both(lambda store: store.list_approvals(run_id=run_id))
        self.both(lambda store: store.list_activities(run_id))
        self.both(lambda store: store.list_pauses())
        self.both(lambda store: store.newest_runs([*self.ids, UUID(int=0)]))
        self.both(lambda store: store.find_reply(run_id, "s-1"))
        self.both(lambda store: store.find_signal(run_id, "s-1"))


async def approvals_by_age(store: Store) -> Any:
    """Return the open approvals."""
    return [plain(approval) for approval in await store.list_approvals(limit=50)]
