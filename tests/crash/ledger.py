"""Holding the effects outside against the logs: nothing lost, nothing repeated unexplained."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol, cast
from uuid import UUID

import psycopg
from psycopg.rows import TupleRow

from holdfast.client import Client, Run
from holdfast.database.urls import split_urls
from holdfast.types import LoggedEvent

TERMINAL = {"WorkflowCompleted", "WorkflowFailed", "WorkflowCanceled", "WorkflowTimedOut"}
# What the log may have but once for a key, and what asked for it.
ANSWERS = {
    "ActivityCompleted": "ActivityScheduled",
    "ChildCompleted": "ChildStarted",
    "ApprovalResolved": "ApprovalRequested",
    "WebhookReceived": "WebhookOpened",
    "UpdateCompleted": "UpdateAccepted",
}


def read_ledger(path: Path) -> dict[str, list[str]]:
    """Return the nonces of all executions by the id of their step or activity."""
    executions: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        executions[entry["id"]].append(entry["nonce"])
    return executions


async def check_runs(client: Client, runs: list[Run], ledger: Path) -> Counter[str]:
    """Check every run against the ledger; return what was seen, for the test to look at."""
    executions, seen = read_ledger(ledger), Counter[str]()
    for run in runs:
        log = await client.runs.log(run.run_id)
        seen += check_run(run, log, executions)
    return seen


def check_run(
    run: Run,
    log: list[LoggedEvent],
    executions: dict[str, list[str]],
    given_back: Collection[str] = (),
) -> Counter[str]:
    """Check one run: its log is sound, its output is its log's, its effects are explained.

    `given_back` has the nonces of workers that were told to stop: what they could not record within
    their grace is done again.
    """
    types = [entry.event.type for entry in log]
    assert [entry.idx for entry in log] == list(range(len(log))), "a gap or a repetition"
    assert run.status == "completed", f"{run.run_id} {run.status} {run.error}"
    assert types[-1] == "WorkflowCompleted"
    assert not TERMINAL & set(types[:-1]), "an event after the end"
    check_answers(log)

    recorded: dict[str, str] = {}
    below: list[str] = []
    retries, lost = Counter[str](), Counter[str]()  # by key; that of a lost turn is empty
    steps: set[str] = set()
    for entry in log:
        event, key = entry.event, entry.event.key or ""
        details: Any = json.loads(event.details or "null")
        match event.type:
            case "StepCompleted" | "ActivityCompleted":
                assert key not in recorded, f"{key} was recorded twice"
                recorded[key] = details["result"]["nonce"]
                if event.type == "StepCompleted":
                    steps.add(key)
            case "ChildCompleted":
                below += details["output"]
            case "StepRetryScheduled" | "ActivityRetryScheduled":
                retries[key] += 1
            case "WorkerLost":
                lost[details["task_key"]] += 1
    output = cast("list[str]", run.output)
    assert sorted(output) == sorted([*recorded.values(), *below]), "a result was not used once"

    extra = 0
    for key, nonce in recorded.items():
        nonces = executions[f"{run.run_id}/{key}"]
        assert nonce in nonces, f"{key}: the recorded execution left no trace"
        unrecorded = len(nonces) - 1 - retries[key]
        unrecorded -= sum(each in given_back for each in nonces if each != nonce)
        explained = lost["" if key in steps else key]
        assert unrecorded <= explained, (
            f"{key}: {unrecorded} executions that no lost worker explains"
        )
        extra += max(0, unrecorded)
    turns = lost.pop("", 0)
    return Counter(
        runs=1,
        lost=turns,
        lost_activities=lost.total(),
        extra=extra,
        retries=retries.total(),
        steps=len(steps),
        activities=len(recorded) - len(steps),
    )


def check_answers(log: list[LoggedEvent]) -> None:
    """Check that whatever was asked for was answered once, and no message came twice."""
    keys: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in log:
        keys[entry.event.type][entry.event.key or ""] += 1
    for answer, question in ANSWERS.items():
        assert keys[answer] == keys[question], f"{answer} and {question} do not match"
        assert set(keys[answer].values()) <= {1}, f"{answer} came twice"
    assert set(keys["SignalReceived"].values()) <= {1}, "a message was taken twice"


class Engine(Protocol):
    """Where the runs are: `url` has a database, or several that are shards, with spaces."""

    @property
    def url(self) -> str:
        """The URL, or URLs."""
        ...


def home_of(engine: Engine) -> str:
    """Return the URL of the database that has what is known by a name."""
    return split_urls(engine.url)[0]


def query_all(engine: Engine, query: str, parameters: Any = None) -> list[TupleRow]:
    """Return the rows of each of its databases."""
    rows: list[TupleRow] = []
    for url in split_urls(engine.url):
        with psycopg.connect(url) as connection:
            rows += connection.execute(query.encode(), parameters).fetchall()
    return rows


def check_nothing_is_queued(engine: Engine) -> None:
    """Check that no task outlived its run, and that shards have nothing for others."""
    assert not query_all(engine, "select run_id, key, kind from holdfast.tasks")
    assert query_all(engine, "select from holdfast.forwards") == []


def check_flows(engine: Engine, runs: Sequence[Run], ledger: Path) -> Counter[str]:
    """Check runs of the flow against the ledger; return what was seen, for the test to look at."""
    executions, seen = read_ledger(ledger), Counter[str]()
    for run in runs:
        assert run.status == "completed", f"{run.run_id} {run.status} {run.error}"
        nonces: list[str] = []
        lost = _lost(engine, run.run_id)
        seen["lost"] += lost.total()
        for key, nonce, attempts in query_all(engine, RESULTS, {"run": run.run_id}):
            done = executions[f"{run.run_id}/{key}"]
            assert nonce in done, f"{key}: the recorded execution left no trace"
            # A loss that the run cannot have caused does not count as an attempt.
            assert len(done) <= attempts + lost[key], f"{key}: executions without a reason"
            seen["elements"] += ":" in key
            nonces.append(nonce)
        assert run.output == {"joined": nonces}, "a result was not used once, and in order"
        seen["runs"] += 1
    return seen


def check_letters(engine: Engine, run: Run, ledger: Path) -> int:
    """Check a run with rules against the ledger; return how many tasks lost their worker."""
    lost = _lost(engine, run.run_id)
    [(nonce, attempts)] = query_all(
        engine,
        "select output #>> '{}', attempts from holdfast.step_states "
        "where run_id = %s and step_slug = 'cleaned' and status = 'completed'",
        [run.run_id],
    )
    executions, under_way = read_ledger(ledger), set[str]()
    cleaned = executions[f"{run.run_id}/cleaned"]
    assert nonce in cleaned, "the recorded execution left no trace"
    assert len(cleaned) <= attempts + lost["cleaned"], "executions without a reason"
    for id in executions:  # in their order; one whose worker was killed stays under way
        element, _, place = id.rpartition("/")
        if element.startswith(f"{run.run_id}/sent:"):
            (under_way.add if place == "begin" else under_way.discard)(element)
            assert len(under_way) <= 3, f"more under way than the concurrency: {under_way}"
    if run.status == "completed":
        [sent, handled, failed] = cast("Any", run.output)["told"]
        assert failed == list(range(1, len(sent), 4))
        for index, found in enumerate(sent):
            done = executions[f"{run.run_id}/sent:{index}/end"]
            assert found is None if index in failed else found in done
        assert handled == ("ValueError: odd" if len(sent) % 2 else None)
    return lost.total()


def _lost(engine: Engine, run_id: UUID) -> Counter[str]:
    """Return how many workers each task lost."""
    rows = query_all(
        engine,
        "select details ->> 'task_key' from holdfast.events "
        "where run_id = %s and event_type = 'WorkerLost'",
        [run_id],
    )
    return Counter(key for (key,) in rows)


# The key, nonce and attempts of each task that had an effect, in order.
RESULTS = """
select x.step_slug || ':' || x.task_index, x.output ->> 'nonce', x.attempts
from (select *, step_slug = 'second' as is_second from holdfast.step_tasks
      where run_id = %(run)s order by is_second, task_index) as x
union all
select s.step_slug, s.output ->> 'nonce', s.attempts from holdfast.step_states s
where s.run_id = %(run)s and s.step_slug = 'beside'
"""


def check_ticks(engine: Engine, schedules: int, names: str) -> None:
    """Compare buckets, runs and moments: each tick up to the last has one bucket, and one run.

    `names` is the pattern of the keys of the runs that schedules start: all are in shard 0.
    """
    with psycopg.connect(home_of(engine)) as connection:
        tick_gaps = connection.execute(
            """
            select s.name, count(b.*), extract(epoch from max(b.tick_at) - min(b.tick_at))
            from holdfast.schedules s left join holdfast.schedule_buckets b on b.schedule = s.name
            where b.until is null
            group by s.name
            """
        ).fetchall()
        assert len(tick_gaps) == schedules, "a schedule never fired"
        for name, count, seconds in tick_gaps:
            assert count == round(seconds) + 1, f"{name} lost a tick"
        assert sum(count for _, count, _ in tick_gaps) > schedules, f"few ticks: {tick_gaps}"
        outcomes = dict(
            connection.execute(
                "select outcome, count(*) from holdfast.schedule_buckets group by outcome"
            ).fetchall()
        )
        assert outcomes["started"] > schedules, f"few runs of schedules: {outcomes}"
        stray = connection.execute(
            """
            select count(*) from holdfast.runs r full join holdfast.schedule_buckets b
                on b.run_id = r.run_id and b.outcome = 'started'
            where (r.run_id is null and b.outcome = 'started')
                or (b.schedule is null and r.key like %s)
            """,
            [names],
        ).fetchone()
        assert stray == (0,), "runs without ticks, or ticks without runs"
        twice = connection.execute(
            "select key from holdfast.runs where key is not null group by key having count(*) > 1"
        ).fetchall()
        assert twice == [], f"keys with two runs: {twice}"
        buffered = connection.execute(
            """
            select count(*) from holdfast.schedules s
            where s.buffered <> (
                select count(*) from holdfast.schedule_buckets b
                where b.schedule = s.name and b.outcome = 'buffered')
            """
        ).fetchone()
        assert buffered == (0,), f"schedules with wrong counts of what is buffered: {buffered}"
