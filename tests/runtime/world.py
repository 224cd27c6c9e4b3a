"""The world around the turns of one run: step ends, commits, signals, time, crashes, other workers.

A choice function picks what happens next. Whatever it picks, every effect is checked against a
replay of the durable log, and at the end every way to read the log must agree.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from holdfast.codec import describe
from holdfast.definitions.workflows import Workflow
from holdfast.events import (
    CANCEL_REQUESTED,
    EVENT_SUBSCRIBED,
    PAUSED,
    RESUMED,
    SIGNAL_RECEIVED,
    STEP_RETRY,
    WEBHOOK_OPENED,
    WORKER_LOST,
    WORKFLOW_STARTED,
    can_wait,
)
from holdfast.runtime.code.commands import Commands
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.steps import Call
from holdfast.runtime.log.virtual_log import in_delivery_order
from holdfast.runtime.turn.turn import Effects, RunInfo, State, Turn
from holdfast.types import ANY_END, Event, Finish, Suspend, TurnCommit, update_topic
from tests.runtime.outside import Outside

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
RUN_ID = UUID("0198c0de-0000-7000-8000-123456789abc")
INFO = RunInfo(RUN_ID, "program", 1, 1, START)
NEVER = 10**18
MEDDLING = 100  # actions after the last of chance, for which others still write to the log


class World:
    """One run, its log, and the workers that take turns at it."""

    def __init__(
        self,
        factory: Callable[[], Workflow[Any, Any]],
        pick: Callable[[int], int],
        *,
        max_actions: int = 60,
    ) -> None:
        self.factory, self.pick, self.max_actions = factory, pick, max_actions
        self.now, self.count, self.lease = START, 0, 0
        self.log = [Event(WORKFLOW_STARTED, None, "null", START)]
        self.running: dict[str, Call] = {}
        self.turn: Turn | None = None
        self.flight: TurnCommit | None = None
        self.claim_at = START
        self.end: str | None = None
        self.output: str | None = None
        self.cached: list[Turn] = []  # suspended turns of workers that the run has left
        self.instances: list[Instance] = []
        self.noted: dict[int, list[str]] = {}  # what replays wrote
        self.awaiting: tuple[str, ...] = ()
        self.paused = False
        self.storm = pick(3) == 0  # others write before each commit can
        self.outside = Outside(self)  # who carries out what the run orders
        self.actions: list[str] = []
        self.seen: Counter[str] = Counter()

    def close(self) -> None:
        """Close everything: what the collector closed would run inside another run's drain."""
        for turn in [self.turn, *self.cached]:
            if turn is not None:
                turn.abandon()
        for instance in self.instances:
            instance.close()

    def clock(self) -> int:
        return self.now

    def replay(self, log: Sequence[Event]) -> Instance:
        """Feed a fresh instance a log, in the order of delivery."""
        ordered = in_delivery_order(log)
        return self.feed(ordered, ordered)

    def feed(self, ordered: Sequence[Event], facts: Sequence[Event]) -> Instance:
        """Feed a fresh instance; `facts` may reach further than what it is fed."""
        noted: list[str] = []
        instance = Instance(self.factory(), INFO, lambda kind, *_: noted.append(kind))
        instance.foresee(facts)
        self.noted[id(instance)] = noted
        self.instances.append(instance)
        for event in ordered:
            instance.feed(event)
        return instance

    # What the turn wants

    def claim(self) -> None:
        self.lease += 1
        if self.turn is not None:
            self.seen["resumes"] += 1
            effects = self.turn.resume(self.lease, self.log[self.turn.durable_length :])
        else:
            self.turn = Turn(self.factory(), INFO, self.lease, self.log, self.clock)
            effects = self.turn.begin()
        self.follow(effects)

    def follow(self, effects: Effects) -> None:
        """Do what the turn asks for, and check that it may."""
        turn = self.turn
        assert turn is not None
        self.effects = effects
        assert effects.state is not State.STUCK, effects.error
        if effects.state is State.LOST:
            self.let_go()
            return
        for key in effects.cancel:
            self.check_cancel(turn, key)
            self.running.pop(key, None)
        for call in effects.start:
            self.check_start(turn, call)
            self.running[call.key] = call
        if effects.commit is not None:
            assert self.flight is None, "one commit at a time"
            assert effects.commit.events, "a commit carries at least one event"
            assert effects.commit.expected == turn.durable_length
            self.flight = effects.commit

    def check_start(self, turn: Turn, call: Call) -> None:
        """Trap 30. A crash right now must come to the same call again."""
        durable = self.log[: turn.durable_length]
        assert not is_paused(durable), f"{call.key} starts while the run is paused"
        log = turn._replayer.log
        unsure = {event.type for event in (*log.flight, *log.fresh)}
        early = call.attempt == 1 and unsure & {EVENT_SUBSCRIBED, WEBHOOK_OPENED}
        assert not early, f"{call.key} starts before a subscription or a webhook is durable"
        again = self.feed(self.certain(turn), in_delivery_order(durable))
        pending = again.steps.pending
        assert call.key in pending, f"{call.key} starts before what led to it is durable"
        assert pending[call.key].arguments == call.arguments
        failed = [e for e in durable if e.type == STEP_RETRY and e.key == call.key]
        assert call.attempt == len(failed) + 1, f"{call.key}: an attempt that is not counted"
        assert call.key not in self.running, f"{call.key} is running already"
        again.close()

    def certain(self, turn: Turn) -> Sequence[Event]:
        """Return what is durable, up to what the code was fed before all that is not."""
        ordered = in_delivery_order(self.log[: turn.durable_length])
        return ordered[: turn._replayer.log.certain]

    def check_cancel(self, turn: Turn, key: str) -> None:
        """Trap 30. By the durable log, nobody awaits the step any more, or the code has ended."""
        if turn.state is State.ENDED:
            return
        certain = self.certain(turn)
        again = self.feed(certain, certain)
        held = again.steps.pending if not again.loop.ended else {}
        assert key not in held, f"{key} is cancelled, but by the log it is awaited"
        again.close()

    # What happens

    @property
    def active(self) -> bool:
        turn = self.turn
        return turn is not None and turn.state is not State.SUSPENDED

    def options(self) -> list[str]:
        found = ["time", "signal"]
        if self.flight is not None:
            found += ["answer"] * 3
        if self.active:
            found += ["result"] * 2 * len(self.running)
            found += ["news", "steal"] if self.pick(5) == 0 else []
            found += ["crash"] if self.pick(5) == 0 else []
            found += ["fail", "retry"] if self.running else []
            found += (
                ["log"] * 3 if self.turn is not None and self.turn.state is State.NEEDS_LOG else []
            )
        elif self.claim_at <= self.now and not self.paused:
            found.append("claim")
        found += self.outside.options()
        if self.turn is not None and not self.active:
            found.append("handover")
        asked = any(event.type == CANCEL_REQUESTED for event in self.log)
        if self.count > 6 and not asked and self.pick(9) == 0:
            found.append("cancel")
        return found

    def act(self, action: str) -> None:
        self.count += 1
        self.actions.append(action)
        getattr(self, f"on_{action}")()

    def on_answer(self) -> None:
        part, turn = self.flight, self.turn
        assert part is not None
        assert turn is not None
        self.flight = None
        if self.storm and self.pick(8):
            self.on_end() if self.outside.can_end() and self.pick(2) else self.on_signal()
        meddles = self.count < self.max_actions + MEDDLING  # then the run may come to its end
        if meddles and not self.paused and self.pick(10) == 0:
            self.external(Event(RESUMED, None, None, self.now))  # it cannot wait
        tail = self.log[part.expected :]
        if tail and not (
            part.after_others and part.lease_no == self.lease and all(map(can_wait, tail))
        ):
            before = turn.instance
            is_fed = turn.state is not State.NEEDS_LOG and turn._replayer.broken is None
            overtaken = is_fed and all(map(can_wait, tail))
            effects = turn.conflict(tail)
            assert not overtaken or turn.instance is before, "a signal leads to a replay"
            self.seen["rebuilds" if turn.instance is not before else "tails"] += 1
            log = turn._replayer.log
            self.seen["overtaken"] += log.certain < log.durable_length
            self.follow(effects)
            return
        self.seen["behind"] += bool(tail)
        self.write(part)
        effects = turn.committed(tail)
        self.follow(effects)

    def write(self, part: TurnCommit) -> None:
        """Trap 32. What holds a lost lease never writes."""
        assert part.lease_no == self.lease, "a stale worker writes"
        self.log += part.events
        self.outside.carry_out(part)
        if isinstance(part.then, Finish):
            self.end, self.output = part.then.status, part.then.output
        elif isinstance(part.then, Suspend):
            self.awaiting = part.then.awaiting
            visible_at = part.then.visible_at
            self.claim_at = NEVER if visible_at is None else visible_at
            if self.turn is not None:
                orders = set(self.turn.instance.ledger(Commands).open)
                assert orders <= self.outside.ordered, "waits for what was never ordered"

    def pop_running(self) -> tuple[Turn, Call]:
        assert self.turn is not None
        return self.turn, self.running.pop(list(self.running)[self.pick(len(self.running))])

    def on_result(self) -> None:
        turn, call = self.pop_running()
        effects = turn.step_completed(call.key, str(self.count), self.now)
        self.follow(effects)

    def on_fail(self) -> None:
        turn, call = self.pop_running()
        late = self.pick(3) == 0
        effects = turn.step_failed(call.key, describe(OSError(self.count)), self.now, None, late)
        self.follow(effects)

    def on_retry(self) -> None:
        turn, call = self.pop_running()
        pause = (0, SECOND // 2, 3 * SECOND)[self.pick(3)]
        error = describe(OSError(self.count))
        effects = turn.step_failed(call.key, error, self.now, self.now + pause, False)
        self.seen["retries"] += 1
        self.follow(effects)

    def on_claim(self) -> None:
        self.claim()

    def on_time(self) -> None:
        self.now += (1, 2, 5)[self.pick(3)] * SECOND
        if self.turn is not None and self.turn.state not in (State.SUSPENDING, State.SUSPENDED):
            effects = self.turn.wake()
            self.follow(effects)

    def on_news(self) -> None:
        """The worker reads its run's log: from where it knows it, or from before."""
        turn = self.turn
        if turn is not None and self.flight is None:
            first = max(0, turn.durable_length - self.pick(3))
            effects = turn.take_unread(self.log[first:], first)
            self.follow(effects)

    def on_log(self) -> None:
        assert self.turn is not None
        effects = self.turn.rebuild(self.log)
        self.seen["logs"] += 1
        self.follow(effects)

    def on_signal(self) -> None:
        payload = {"n": self.count, "kind": self.count % 3}
        names = self.names()
        self.signal(names[self.pick(len(names))], payload)

    def names(self) -> list[str]:
        """The names of the signals that others send: those of events once they are subscribed."""
        return ["x", "y", *self.outside.subscribed]

    def signal(self, name: str, payload: object) -> None:
        if name in self.outside.subscribed:
            self.seen["events"] += 1
            payload = {"topic": "t", "id": str(self.count), "payload": payload}
        text = json.dumps({"signal_name": name, "input": payload})
        self.external(Event(SIGNAL_RECEIVED, None, text, self.now), wakes=name)

    def on_cancel(self) -> None:
        self.external(Event(CANCEL_REQUESTED, None, '{"reason":null}', self.now))

    def on_end(self) -> None:
        self.seen["ends"] += 1
        self.external(self.outside.end(), wakes=ANY_END)

    def on_update(self) -> None:
        self.seen["updates"] += 1
        name = "uv"[self.pick(2)]
        received = {"signal_name": name, "input": self.count, "update": True, "reply_to": "c"}
        event = Event(SIGNAL_RECEIVED, f"id-{self.count}", json.dumps(received), self.now)
        self.external(event, wakes=update_topic(name))

    def on_pause(self) -> None:
        self.seen["pauses"] += 1
        self.paused = True
        self.external(Event(PAUSED, None, '{"reason":null}', self.now))

    def on_resume(self) -> None:
        self.paused = False
        self.external(Event(RESUMED, None, None, self.now))

    def external(self, event: Event, *, wakes: str | None = None) -> None:
        """Append what others write, and wake the run where it awaits that."""
        self.log.append(event)
        if not self.active and (wakes is None or wakes in self.awaiting):
            self.claim_at = min(self.claim_at, self.now)

    def on_crash(self) -> None:
        """The worker dies; its commit may have been written without an answer."""
        self.seen["crashes"] += 1
        part, self.flight = self.flight, None
        if part is not None and self.pick(2) and len(self.log) == part.expected:
            self.write(part)
        self.let_go()
        if self.end is None:
            self.lose_lease()

    def on_steal(self) -> None:
        """The lease expires while its worker continues."""
        self.seen["steals"] += 1
        self.lose_lease()

    def lose_lease(self) -> None:
        text = json.dumps({"task_key": "", "lease_no": self.lease, "worker": "w"})
        self.lease += 1
        self.log.append(Event(WORKER_LOST, None, text, self.now))
        self.claim_at = self.now

    def let_go(self) -> None:
        if self.turn is not None:
            self.turn.abandon()
        self.turn = self.flight = None
        self.running.clear()

    def on_handover(self) -> None:
        """Another worker takes the run; this one keeps its cached turn."""
        self.seen["handovers"] += 1
        assert self.turn is not None
        self.cached.append(self.turn)
        self.turn = None

    # A whole run

    def run(self) -> str | None:
        """Let things happen, then let the run end. Returns its status."""
        self.claim()
        while self.end is None and self.count < self.max_actions:
            options = self.options()
            self.act(options[self.pick(len(options))])
        for _ in range(2000):
            if self.end is not None:
                break
            self.push()
        return self.end

    def push(self) -> None:
        """Do what brings the run nearer to its end."""
        turn = self.turn
        if self.flight is not None:
            self.act("answer")
        elif turn is not None and turn.state is State.NEEDS_LOG:
            self.act("log")
        elif not self.active:
            self.push_waiting()
        elif self.running:
            self.act("result")
        else:
            assert turn is not None
            due = self.effects.next_due
            assert due is not None, f"nothing moves: {list(turn.instance.steps.pending)}"
            self.now = max(self.now, due)
            effects = turn.wake()
            self.follow(effects)

    def push_waiting(self) -> None:
        if self.paused:
            self.act("resume")
        elif self.claim_at <= self.now:
            self.act("claim")
        elif self.claim_at == NEVER and self.outside.open:
            self.act("end")
        elif self.claim_at == NEVER:
            self.count += 1
            names = self.names()
            name = names[self.count % len(names)]
            self.signal(name, {"n": self.count, "kind": self.count // len(names) % 3})
        else:
            self.now = self.claim_at


def is_paused(log: Sequence[Event]) -> bool:
    """Return True if the log says that the run is paused."""
    pauses = [event.type for event in log if event.type in (PAUSED, RESUMED)]
    return pauses[-1:] == [PAUSED]
