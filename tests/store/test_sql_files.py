"""The SQL files against each other, and against what is written about them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from holdfast import sql
from holdfast.database.scripts import FOLDERS, SETTINGS, complete, load_scripts
from holdfast.errors import DatabaseError, HoldfastError
from holdfast.store.postgres.database import translated

PAGE = (Path(sql.__path__[0]) / "README.md").read_text(encoding="utf-8")
REFERENCE = (Path(__file__).parents[2] / "docs/reference/sql.md").read_text(encoding="utf-8")
CONDITIONS = {"null_value_not_allowed": "22004", "invalid_parameter_value": "22023"}
CODES = set(re.findall(r"^\| (\w{5}) \|", PAGE, re.MULTILINE))
CAUGHT = {"HF002", "HF004"}  # by the function that calls the one that raises it
UNSEEN = {"HF009", "HF010"}  # the Python client and the worker call again, and say nothing
MAY_BE_QUOTED = r"hashtext\('|current_setting\('|['\"]holdfast\.(errors\.|PoisonedRun$)"
PATH = "set search_path = pg_catalog, pg_temp"
GENERIC = "set plan_cache_mode = force_generic_plan"
NO_SCAN = "set enable_seqscan = off"
NO_JIT = "set jit = off"
FILES = {file.name: file.text for file in load_scripts().functions}


def statements(text: str) -> str:
    """Return SQL without its comments."""
    return re.sub(r"--[^\n]*", "", text)


def comments(text: str) -> Iterator[str]:
    """Return the comments of a file, each as one line."""
    for block in re.findall(r"(?:^ *--[^\n]*\n)+", text, re.MULTILINE):
        yield " ".join(line.strip(" -") for line in block.splitlines())


def raised() -> set[str]:
    """Return the SQLSTATEs of all `raise` statements."""
    found = set[str]()
    for text in FILES.values():
        for condition in re.findall(r"\braise\s+(\w+)\b", statements(text)):
            if condition not in ("exception", "sqlstate", "info"):
                found.add(CONDITIONS[condition])
        found |= set(re.findall(r"errcode = '(\w{5})'", statements(text)))
        found |= set(re.findall(r"\braise\s+sqlstate\s+'(\w{5})'", statements(text)))
    return found


def test_the_page_has_each_code_that_the_functions_raise() -> None:
    assert raised() == CODES


def test_the_reference_has_each_code_that_callers_see() -> None:
    refused = REFERENCE.partition("## What is refused")[2]
    assert set(re.findall(r"^\| (\w{5}) \|", refused, re.MULTILINE)) == CODES - CAUGHT - UNSEEN


def test_what_is_caught_is_caught() -> None:
    for code in CAUGHT:
        assert any(f"when sqlstate '{code}' then" in statements(text) for text in FILES.values())


@pytest.mark.parametrize("code", sorted(CODES - CAUGHT))
def test_each_code_is_an_error_of_ours_in_our_words(code: str) -> None:
    moment = code == "HF007"  # the others have a run's id
    detail = "1767225600000000" if moment else "01900000-0000-7000-8000-000000000000"
    error = asyncpg.PostgresError.new({"S": "ERROR", "C": code, "M": "our words", "D": detail})
    with pytest.raises(HoldfastError, match=r"^our words") as caught, translated():
        raise error
    assert type(caught.value) is not DatabaseError


def test_the_page_has_each_folder() -> None:
    rows = re.findall(r"^\| (`[a-z`, ]+`) \|", PAGE, re.MULTILINE)
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == list(FOLDERS)


def test_each_function_has_a_head() -> None:
    for name, text in FILES.items():
        made = re.findall(r"([^\n]*)\n^create or replace function holdfast\.(\w+)", text, re.M)
        assert [function for head, function in made if not head.startswith("--")] == [], name


def functions() -> Iterator[tuple[str, str, str]]:
    """Return the name, the head and the statements of each function."""
    head = r"((?:^--[^\n]*\n)+)^create or replace function holdfast\.(\w+)"
    for text in FILES.values():
        made = list(re.finditer(head, text, re.MULTILINE))
        ends = [each.start() for each in made[1:]] + [len(text)]
        for each, end in zip(made, ends, strict=True):
            yield each[2], " ".join(comments(each[1])), statements(text[each.end() : end])


def test_each_body_that_is_a_text_has_a_path() -> None:
    for name, text in FILES.items():
        assert text.count("\nas $") == text.count("\nset search_path = pg_catalog, pg_temp\n"), name


def test_heads_have_only_the_settings_that_differ() -> None:
    """A `reset` of what is not a default is refused when the files are read."""
    head = r"^language (\w+).*\n((?:(?:set|reset) .*\n)*)as \$"
    for path in (Path(sql.__path__[0]) / "functions").rglob("*.sql"):
        for language, clauses in re.findall(head, path.read_text(encoding="utf-8"), re.MULTILINE):
            defaults = [f"set {name} = {value}" for name, value in SETTINGS[language].items()]
            assert set(clauses.splitlines()).isdisjoint(defaults), f"{path.name}: {clauses}"


@pytest.mark.parametrize(
    ("written", "complete_settings"),
    [
        ("language sql stable\nas $$", f"language sql stable\n{PATH}\n{NO_JIT}\nas $$"),
        (
            "language plpgsql\nas $$",
            f"language plpgsql\n{PATH}\n{GENERIC}\n{NO_SCAN}\n{NO_JIT}\nas $$",
        ),
        (
            "language plpgsql\nset plan_cache_mode = force_custom_plan\nset work_mem = 1\nas $$",
            f"language plpgsql\n{PATH}\nset plan_cache_mode = force_custom_plan\n{NO_SCAN}\n"
            f"{NO_JIT}\nset work_mem = 1\nas $$",
        ),
        (
            "language plpgsql\nreset plan_cache_mode reset enable_seqscan\nas $_$",
            f"language plpgsql\n{PATH}\n{NO_JIT}\nas $_$",
        ),
        (
            "language plpgsql immutable\nas $$",
            f"language plpgsql immutable\n{PATH}\n{NO_JIT}\nas $$",
        ),
        ("language sql stable as $$", "language sql stable as $$"),
        ("language sql stable\nreturn 1;", "language sql stable\nreturn 1;"),
        ("language sql\nbegin atomic", "language sql\nbegin atomic"),
    ],
)
def test_the_installer_adds_the_settings(written: str, complete_settings: str) -> None:
    function = "create or replace function holdfast.f() returns int\n"
    assert complete(function + written) == function + complete_settings


def test_heads_name_the_functions_that_call() -> None:
    known = {name for name, _, _ in functions()}
    callers: dict[str, set[str]] = {name: set() for name in known}
    for name, _, body in functions():
        for called in known.intersection(re.findall(r"holdfast\.(\w+)\(", body)) - {name}:
            callers[called].add(name)
    wrong: dict[str, set[str]] = {}
    for name, head, _ in functions():
        for said in re.findall(r"[Cc]alled by ([^.]+)", head):
            named = known.intersection(re.findall(r"\w+", said))
            only_names = set(re.findall(r"\w+", said)) <= known | {"and"}
            differing = named ^ callers[name] if only_names else named - callers[name]
            if differing:
                wrong[name] = differing
    assert wrong == {}


# What is changed by its place, with no lock of its row before, and why that is right.
IN_PLACE = {
    ("_end_runs", "runs"): "it counts what it changed, and changes all again under their locks",
    ("_start_later", "tasks"): "this transaction has made them",
    ("_withdraw_approvals", "tasks"): "who changes an approval has locked the turn row",
    ("_end_linear_step", "tasks"): "locked when it was found, in a statement before",
    ("_refile_groups", "tasks"): "those that it counts have changed; others are found again",
    ("_free_slots", "limit_holders"): "one that has moved is that of another run",
    ("sweep_limits", "limit_holders"): "as _free_slots",
    ("sweep_limits", "limit_uses"): "who counts uses has locked the limit",
    ("_receive_groups", "grouped_messages"): "the advisory lock of the group",
    ("_allowed_groups", "limited_groups"): "one that has moved is to be looked at again",
    ("_catch_up", "tasks"): "what changes them at this moment has the right time",
    ("_catch_up", "limited_groups"): "as its tasks",
    ("_catch_up", "group_tokens"): "as its tasks",
    ("_catch_up", "deliveries"): "as its tasks",
    ("_catch_up", "http_deliveries"): "as its tasks",
    ("_catch_up", "%1$I"): "as its tasks",
}
LOCKING = r"for (?:no key )?update"


def locks(text: str) -> set[str]:
    """Return the tables of which SQL locks rows, itself or by a function that it calls."""
    return set(
        re.findall(rf"from holdfast\.([\w%$]+) \w+\b(?:(?!from |;).)*?{LOCKING}", text, re.S)
    )


def changes_in_place(body: str) -> Iterator[tuple[str, str, str, str]]:
    """Return the table of each change by a ctid, the change, its statement, and those before."""
    end = r"(?=;|update holdfast|delete from|insert into|\Z)"
    change = rf"(?:update|delete from) holdfast\.([\w%$]+) (\w+)\b.*?{end}"
    for each in re.finditer(change, body, re.DOTALL):
        if f" {each[2]}.ctid =" in each[0]:
            begin = body.rfind(";", 0, each.start()) + 1
            yield each[1], each[0], body[begin:].partition(";")[0], body[:begin]


def test_what_is_changed_by_its_place_was_locked_in_a_statement_before() -> None:
    """Else the row may have a new place when it is changed, and silently stay as it was.

    A lock in the statement of the change is enough for a delete, which is then repeated, or if
    `returning` says what was changed. Rows that nobody updates have one place.
    """
    bodies = {name: body for name, _, body in functions()}
    updated = {
        table
        for body in bodies.values()
        for table in re.findall(r"update holdfast\.([\w%$]+)", body)
        + re.findall(r"insert into holdfast\.(\w+)(?:(?!insert into|;).)*?do update", body, re.S)
    }
    wrong = set[tuple[str, str]]()
    for name, head, body in functions():
        for table, change, statement, before in changes_in_place(body):
            called = re.findall(r"holdfast\.(_\w+)\(", before)
            locked = locks(before).union(*(locks(bodies.get(each, "")) for each in called))
            inside = table in locks(statement)
            is_told = change.startswith("delete") or "returning" in change
            is_turn = table == "tasks" and "key = ''" in statement
            row = "task|turn" if is_turn else table.rstrip("s")
            expected = re.search(rf"expects [^.;]*\b({row})[^.;]* locked", head) is not None
            if table in updated - locked and not expected and not (inside and is_told):
                wrong.add((name, table))
    assert wrong == set(IN_PLACE)


def test_a_status_is_not_a_literal_beside_a_key() -> None:
    """Else a plan made while no run had it takes the index by status, and later reads all of it."""
    scan = r"from holdfast\.runs (\w+)\s+where ((?:[^();]|\((?:[^();]|\([^();]*\))*\))*)"
    wrong = [
        (name, where)
        for name, text in FILES.items()
        for run, where in re.findall(scan, statements(text))
        if re.search(rf"\b{run}\.(run_id|parent_run_id|name) = ", where)
        and re.search(rf"\b{run}\.status (= '|in \()", where)
        and "limit" not in where.partition(f"{run}.status")[0]
    ]
    assert wrong == []


def test_notices_of_hints_reach_only_callers_that_ask_for_hints() -> None:
    """Workers and clients of an earlier release know of no other topic than `work`."""
    bodies = {name: body for name, _, body in functions()}
    careful = {name for name in bodies if re.search(r"_(tell|as_work)\(", bodies[name])}
    open_ways = {name for name in bodies if re.search(r"'(starts|activities)'", bodies[name])}
    while True:
        more = {
            name
            for name in bodies.keys() - open_ways - careful
            if open_ways.intersection(re.findall(r"holdfast\.(\w+)\(", bodies[name]))
        }
        if not more:
            break
        open_ways |= more
    assert "_schedule_activities" in open_ways
    assert "commit" not in open_ways
    assert {name for name in open_ways if not name.startswith("_")} == set()


def test_literals_mean_the_same_whatever_a_session_makes_of_backslashes() -> None:
    for name, text in FILES.items():
        literals = re.findall(r"(\w?)('(?:[^']|'')*')", statements(text))
        assert [each for prefix, each in literals if "\\" in each and prefix != "E"] == [], name


def test_lines_fit_the_page() -> None:
    for name, text in FILES.items():
        assert [line for line in text.splitlines() if len(line) > 100] == [], name


def test_comments_name_functions_that_exist() -> None:
    known = set(load_scripts().function_names)
    for name, text in FILES.items():
        for comment in comments(text):
            named = set(re.findall(r"(?<![\w…])_[a-z_]*[a-z](?![\w…]|_…)", comment))
            assert named <= known, name


def test_no_name_of_the_schema_is_quoted() -> None:
    """A7. What is quoted is not rewritten for another schema: it would name this one there.

    Locks, settings and kinds of errors have names of their own, which are the same everywhere.
    """
    files = dict(FILES) | {str(each): each.text for each in load_scripts().migrations}
    for name, text in files.items():
        found = re.findall(r"""[\w.]*\(?['"]holdfast\b(?:['"]|\.[\w.]*)""", statements(text))
        wrong = [each for each in found if not re.match(MAY_BE_QUOTED, each)]
        assert wrong == [], f"{name}: write them between dollars, $n$holdfast.…$n$"


def test_the_digest_of_the_files_is_computed_once() -> None:
    assert load_scripts().checksum is load_scripts().checksum
