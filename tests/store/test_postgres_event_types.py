"""What the engine says of event types: the SQL functions agree with holdfast/events.py."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast import errors, events
from holdfast.database.scripts import load_scripts
from holdfast.events import TYPES, EventType, read_seen
from holdfast.types import Event

PAGE = Path(__file__).parents[2] / "docs/reference/events.md"
DOCUMENTED = dict(
    re.findall(r"^\| ([A-Z]\w+) \|[^|]*\| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
)
MARKS = (
    '{"seen":7,"name":"a"}',
    '{"python":"3.12","seen":7,"name":"a"}',
    '{"python":"3.12","name":"a"}',
    '{"name":"a","seen":7}',
    '{"result":{"seen":7,"a":1}}',
)
TESTED_BY_CALLS = {"_event_role", "_is_terminal", "_can_wait", "_is_told_by_run", "_seen"}
REPLACEABLE = {events.STEP_COMPLETED, events.ACTIVITY_COMPLETED}
STOPPED_WORK = {events.ACTIVITY_CANCEL, events.CHILD_CANCEL}
CONTROL = {events.WORKER_LOST, events.PAUSED, events.RESCHEDULED, events.RESUMED}
# Every other list of event types in SQL, by function, as what it is in Python.
LISTS: Mapping[str, tuple[Collection[str], ...]] = {
    "_is_unreadable": ({events.SIGNAL_RECEIVED, events.APPROVAL_RESOLVED},),
    "_carry_out": (
        {  # these have rows, which a run that has ended does not get
            name
            for name in events.CALL_COMMANDS
            if (events.COMMAND_OF.get(name) or name)
            in (events.ACTIVITY_SCHEDULED, events.APPROVAL_REQUESTED)
        },
        events.COMMANDS,
    ),
    "_stream_fate": (events.STEP_ENDS | {events.ACTIVITY_COMPLETED, events.ACTIVITY_FAILED},),
    "_skip_steps": ({"FlowStepFailed", "FlowStepSkipped"},),
    "_tell_parents": ({events.CHILD_COMPLETED, events.CHILD_FAILED},),
    "record_step": (events.STEP_ENDS,),
    "find_reply": (events.UPDATE_ENDS,),
    "_refuse_askers": (
        events.UPDATE_ENDS,
        events.UPDATE_ENDS | {events.SIGNAL_RECEIVED, events.UPDATE_ACCEPTED},
    ),
    "fork_run": (REPLACEABLE,),
    "_copy_log": (REPLACEABLE,),
    "_forked_events": (events.STEP_ENDS, CONTROL),
    "_open_child_calls": ({events.CHILD_COMPLETED, events.CHILD_FAILED, events.CHILD_CANCEL},),
    "_untried_events": (
        STOPPED_WORK,
        events.NAMED_BY_CALLERS,
        events.TIMERS,
        events.CALL_FAILURES,
        {
            events.STEP_COMPLETED,
            events.SIGNAL_RECEIVED,
            events.VALUE_RECORDED,
            events.CANCEL_REQUESTED,
            events.FORKED,
        },
    ),
    "_last_failure": ({events.CONTINUED, events.FORKED},),
    "_made_again": (
        {events.FAILED, events.CANCELLED},
        STOPPED_WORK,
        events.CALL_FAILURES | STOPPED_WORK,
        events.CALL_FAILURES,
    ),
    "retry_plan": (events.STEP_ENDS | {events.SIGNAL_SENT},) * 2,
    "_guess_failures": (
        events.CALL_FAILURES
        | {events.FAILED, events.ACTIVITY_RETRY, events.STEP_RETRY, events.TIMER_SCHEDULED}
        | {events.VALUE_SET, events.WORKER_LOST, events.PAUSED, events.RESCHEDULED, events.RESUMED},
        events.CALL_FAILURES,
    ),
}
# Functions say by these names why they refuse something.
ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type)} - TYPES.keys()
_LITERAL = r"'([A-Z][a-z]+(?:[A-Z][a-z]+)+)'"
_LIST = re.compile(rf"{_LITERAL}(?:(?:,| else)\s+{_LITERAL})+")
_FUNCTION = re.compile(
    r"^create or replace function holdfast\.(\w+)(.*?)(?=^create or replace|\Z)",
    re.MULTILINE | re.DOTALL,
)
FUNCTIONS: Mapping[str, str] = {
    name: re.sub(rf"--[^\n]*|'(?:{'|'.join(ERRORS)})'", "", body)
    for file in load_scripts().functions
    for name, body in _FUNCTION.findall(file.text)
}


async def ask(database_url: str, question: str) -> dict[str, Any]:
    """Return what SQL says of each event type."""
    connection = await asyncpg.connect(database_url)
    try:
        found = await connection.fetch(
            f"select t, {question} as answer from unnest($1::text[]) as t", sorted(TYPES)
        )
    finally:
        await connection.close()
    return {row["t"]: row["answer"] for row in found}


def test_the_table_has_the_types_of_the_documentation() -> None:
    assert set(TYPES) == set(DOCUMENTED)


def documented_fields(name: str) -> set[str]:
    if name == events.FAILED:  # below the table
        return set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    return set(re.findall(r"`(\w+)\??`", DOCUMENTED[name]))


@pytest.mark.parametrize("type_", TYPES.values(), ids=list(TYPES))
def test_the_documentation_has_each_field_of_a_shape(type_: EventType) -> None:
    if type_.details is None:
        return
    fields, defaults = type_.details.__struct_fields__, type_.details.__struct_defaults__
    same = [name for name, other in TYPES.items() if other.details is type_.details]
    assert set(fields[: len(fields) - len(defaults)]) <= documented_fields(type_.name)
    assert set(fields) <= {field for name in same for field in documented_fields(name)}


async def test_sql_and_python_agree_on_the_role_of_each_type(database_url: str) -> None:
    answers = await ask(database_url, "holdfast._event_role(t)")
    assert answers == {name: type_.role for name, type_ in TYPES.items()}


@pytest.mark.parametrize(
    ("question", "types"),
    [
        ("holdfast._is_terminal(t)", events.TERMINAL),
        ("holdfast._can_wait(t, null)", events.CAN_WAIT),
        ("holdfast._is_told_by_run(t)", events.TOLD_BY_RUN),
        ("holdfast._is_unreadable(t, null)", {events.SIGNAL_RECEIVED, events.APPROVAL_RESOLVED}),
    ],
)
async def test_sql_and_python_agree_on_a_set_of_types(
    database_url: str, question: str, types: Collection[str]
) -> None:
    answers = await ask(database_url, question)
    assert {name for name, answer in answers.items() if answer} == set(types)


def test_every_list_of_event_types_in_sql_is_one_of_python() -> None:
    found: dict[str, list[set[str]]] = {}
    for name, body in FUNCTIONS.items():
        lists = [set(re.findall(_LITERAL, match[0])) for match in _LIST.finditer(body)]
        if lists and name not in TESTED_BY_CALLS:
            found[name] = lists
    assert found == {name: [set(each) for each in lists] for name, lists in LISTS.items()}


def test_every_event_type_in_sql_is_one_of_python() -> None:
    used = {each for body in FUNCTIONS.values() for each in re.findall(_LITERAL, body)}
    assert used <= set(TYPES)


def test_every_command_is_carried_out() -> None:
    branches = set(re.findall(rf"(?:when|=) {_LITERAL} then", FUNCTIONS["_carry_out"]))
    assert branches == events.COMMANDS


async def test_the_index_of_signal_ids_is_of_signals(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        predicate = await connection.fetchval(
            "select pg_get_expr(indpred, indrelid) from pg_index "
            "where indexrelid = 'holdfast.events_signal_once'::regclass"
        )
    finally:
        await connection.close()
    assert re.findall(_LITERAL, predicate) == [events.SIGNAL_RECEIVED]


async def test_sql_and_python_read_the_same_marks(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        for kind in sorted(TYPES):
            for text in MARKS:
                seen = await connection.fetchval("select holdfast._seen($1, $2)", kind, text)
                assert seen == read_seen(Event(kind, "a", text, 0)), (kind, text)
    finally:
        await connection.close()


def test_python_tells_event_types_apart_in_one_table() -> None:
    """A pattern of a `match` may name several types; a set of them is derived from the table."""
    several = re.compile(r'"(\w+)"(?:,\s*"(\w+)")+')
    root = Path(events.__file__).parent
    for path in set(root.rglob("*.py")) - {Path(events.__file__)}:
        text = re.sub(r"__all__[^\]]*\]", "", path.read_text(encoding="utf-8"))
        for match in several.finditer(text):
            assert len(set(re.findall(r'"(\w+)"', match[0])) & set(TYPES)) < 2, (path, match[0])


def test_every_event_type_that_python_writes_or_looks_for_is_in_the_table() -> None:
    root = Path(events.__file__).parent
    named = re.compile(r'(?:\bEvent\(|\bevent\.type == |\be\.type == )"(\w+)"')
    found = {name for path in root.rglob("*.py") for name in named.findall(path.read_text("utf-8"))}
    assert found
    assert found <= set(TYPES)
