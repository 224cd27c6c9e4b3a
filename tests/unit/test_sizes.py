"""Functions, files and constructors are within their limits, or `EXCEPTIONS` says why not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import holdfast

SOURCE: Final = Path(holdfast.__file__).parent
GENERATED: Final = "sync"  # from client/, which is measured

# In lines. Of a function its body with the docstring counts: what follows the parameters.
LIMITS: Final = {"module": 400, "function": 50, "SQL file": 400, "SQL function": 80}
MOST_PARAMETERS: Final = 8  # of a constructor, besides self

_SQL_FUNCTION: Final = re.compile(
    r"^create or replace function holdfast\.(\w+).*?"
    r"(?:\bas \$\$\n(?P<block>.*?)^[^\n]*\$\$;"
    r"|^begin atomic\n(?P<atomic>.*?)^end;|^(?P<expression>return\b.*?;)$)",
    re.MULTILINE | re.DOTALL,
)

# fmt: off
OPTIONS: Final = "one parameter for each option that users may give"
PARTS: Final = "one parameter for each part that it calls; the worker alone makes it"
GROUP: Final = "one class that users call: signatures and docstrings with examples, little code"
CALLED_OFTEN: Final = "called for each turn, task or message: each function that it calls costs"
STATEMENT: Final = "one statement, whose parts see the same snapshot"

# (kind, place) -> why it must be so
EXCEPTIONS: Final[dict[tuple[str, str], str]] = {
    ("constructor", "client/client.py Client.__init__"): OPTIONS,
    ("constructor", "definitions/app.py App.__init__"): OPTIONS,
    ("constructor", "definitions/activities.py Activity.__init__"): OPTIONS,
    ("constructor", "definitions/consumers.py Consumer.__init__"): OPTIONS,
    ("constructor", "definitions/flows.py Flow.__init__"): OPTIONS,
    ("constructor", "definitions/workflows.py Workflow.__init__"): OPTIONS,
    ("constructor", "server/server.py Server.__init__"): OPTIONS,
    ("constructor", "server/site.py Site.__init__"): OPTIONS,
    ("constructor", "store/postgres/store.py PostgresStore.__init__"): OPTIONS,
    ("constructor", "worker/heartbeat.py HeartbeatService.__init__"): PARTS,
    ("constructor", "worker/runs.py Runs.__init__"): PARTS,
    ("constructor", "worker/worker.py Worker.__init__"): OPTIONS,
    ("module", "client/client.py"): GROUP,
    ("module", "client/runs.py"): GROUP,
    ("module", "details.py"): "the shapes of the details of all entries, in one place",
    ("module", "errors.py"): "the tree of all errors, drawn and defined in one place",
    ("module", "worker/runs.py"):
        "one class, whose methods all change which runs are held; each claim passes through it",
    ("module", "worker/worker.py"): "the wiring of a worker, its start and its stop, in one order",
    ("SQL function", "sql/functions/core/commit.sql commit"): CALLED_OFTEN,
    ("SQL function", "sql/functions/core/start_runs.sql start_one"): CALLED_OFTEN,
    ("SQL function", "sql/functions/flows/advance.sql _advance_flows"): CALLED_OFTEN,
    ("SQL function", "sql/functions/flows/begin.sql _begin_maps"): STATEMENT,
    ("SQL function", "sql/functions/flows/children.sql _start_child_steps"):
        "one loop over the runs to start, which each of its branches needs",
    ("SQL function", "sql/functions/flows/ends.sql end_step_tasks"): CALLED_OFTEN,
    ("SQL function", "sql/functions/flows/failures.sql _fail_attempts"): STATEMENT,
    ("SQL function", "sql/functions/flows/linear.sql _end_linear_steps"): CALLED_OFTEN,
    ("SQL function", "sql/functions/flows/linear_one.sql _end_linear_step"): CALLED_OFTEN,
    ("SQL function", "sql/functions/limits/choose.sql _choose_limited"): STATEMENT,
    ("SQL function", "sql/functions/queues/groups.sql _receive_groups"): CALLED_OFTEN,
    ("SQL function", "sql/functions/queues/receive.sql receive_messages"): CALLED_OFTEN,
    ("SQL function", "sql/functions/queues/return.sql return_messages"): STATEMENT,
    ("SQL function", "sql/functions/queues/send.sql send_messages"): CALLED_OFTEN,
    ("SQL function", "sql/functions/retention/archive.sql export_runs"): STATEMENT,
    ("SQL function", "sql/functions/rules/start.sql _start_ruled"):
        "the rules of a start, in the order in which they hold",
    ("SQL function", "sql/functions/schedules/starts.sql _start_ticks"):
        "what ticks do: messages, then workflows, then flows, of the same ticks",
    ("SQL function", "sql/functions/workers/claim_tasks.sql claim_tasks"): CALLED_OFTEN,
    ("SQL function", "sql/functions/workers/claim_tasks.sql _lock_due"): CALLED_OFTEN,
}
# fmt: on


class Size(NamedTuple):
    """A thing that is measured."""

    kind: str
    place: str
    size: int
    limit: int

    def __str__(self) -> str:
        unit = "parameters" if self.kind == "constructor" else "lines"
        return f"{self.kind} {self.place}: {self.size} {unit}, the limit is {self.limit}"


@cache
def sizes(root: Path) -> tuple[Size, ...]:
    """Return the size of each thing in a folder."""
    return tuple(_measure(root))


def _measure(root: Path) -> Iterator[Size]:
    for file in sorted(root.rglob("*.py")):
        path, text = file.relative_to(root), file.read_text(encoding="utf-8")
        if path.parts[0] != GENERATED:
            yield _lines("module", str(path), text)
            yield from _of_python(str(path), ast.parse(text))
    for file in sorted(root.rglob("*.sql")):
        path, text = file.relative_to(root), file.read_text(encoding="utf-8")
        yield _lines("SQL file", str(path), text)
        for function in _SQL_FUNCTION.finditer(text):
            body = function["block"] or function["atomic"] or function["expression"]
            yield _lines("SQL function", f"{path} {function[1]}", body)


def _lines(kind: str, place: str, text: str) -> Size:
    return Size(kind, place, len(text.splitlines()), LIMITS[kind])


def _of_python(path: str, node: ast.AST, within: str = "") -> Iterator[Size]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not isinstance(child, ast.expr):
                yield from _of_python(path, child, within)
            continue
        name = f"{within}{child.name}"
        yield from _of_python(path, child, f"{name}.")
        if not isinstance(child, ast.ClassDef):
            first, last = child.body[0].lineno, child.end_lineno or 0
            yield Size("function", f"{path} {name}", last - first + 1, LIMITS["function"])
            if child.name == "__init__":
                given = child.args
                count = len(given.posonlyargs + given.args + given.kwonlyargs) - 1
                yield Size("constructor", f"{path} {name}", count, MOST_PARAMETERS)


def wrong(root: Path, exceptions: dict[tuple[str, str], str]) -> list[str]:
    """Return what is too large without a row among the exceptions, and the rows without need."""
    large = {(each.kind, each.place): each for each in sizes(root) if each.size > each.limit}
    found = [str(each) for key, each in large.items() if key not in exceptions]
    return found + [
        f"{kind} {place}: has a row in EXCEPTIONS, but is not too large, or not there"
        for kind, place in exceptions.keys() - large.keys()
    ]


def test_sizes_are_within_their_limits() -> None:
    assert wrong(SOURCE, EXCEPTIONS) == []


def test_each_exception_has_a_reason() -> None:
    assert [key for key, reason in EXCEPTIONS.items() if not reason] == []


def test_each_function_of_sql_is_measured() -> None:
    made = re.compile(r"^create or replace function", re.MULTILINE)
    count = sum(len(made.findall(file.read_text())) for file in SOURCE.rglob("*.sql"))
    assert sum(each.kind == "SQL function" for each in sizes(SOURCE)) == count


def python(lines: int, parameters: str = "self") -> str:
    """Return a module with a method whose body has so many lines."""
    return f"class A:\n    def __init__({parameters}):\n" + "        pass\n" * lines


def sql(lines: int) -> str:
    """Return a file with a function whose body has so many lines."""
    return "create or replace function holdfast.f()\nas $$\n" + "-- x\n" * lines + "$$;\n"


EIGHT: Final = "self, a, b, c, d, *, e, f, g, h"


@pytest.mark.parametrize(
    ("file", "text", "large"),
    [
        ("large.py", "pass\n" * 401, ["module large.py: 401 lines, the limit is 400"]),
        ("large.py", "pass\n" * 400, []),
        ("a/b.py", python(51), ["function a/b.py A.__init__: 51 lines, the limit is 50"]),
        ("a/b.py", python(50), []),
        (
            "a/b.py",
            python(1, f"{EIGHT}, i"),
            ["constructor a/b.py A.__init__: 9 parameters, the limit is 8"],
        ),
        ("a/b.py", python(1, EIGHT), []),
        ("f.sql", "-- x\n" * 401, ["SQL file f.sql: 401 lines, the limit is 400"]),
        ("f.sql", "-- x\n" * 400, []),
        ("f.sql", sql(81), ["SQL function f.sql f: 81 lines, the limit is 80"]),
        ("f.sql", sql(80), []),
        ("sync/b.py", python(401), []),
    ],
)
def test_what_is_too_large_is_found(tmp_path: Path, file: str, text: str, large: list[str]) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert wrong(tmp_path, {}) == large


def test_a_function_within_a_function_is_measured(tmp_path: Path) -> None:
    inner = "".join(f"        {line}\n" for line in python(51).splitlines())
    (tmp_path / "a.py").write_text(f"def outer():\n    if True:\n{inner}")
    assert wrong(tmp_path, {}) == [
        "function a.py outer.A.__init__: 51 lines, the limit is 50",
        "function a.py outer: 54 lines, the limit is 50",
    ]


def test_an_exception_needs_a_thing_that_is_too_large(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("pass\n" * 401)
    (tmp_path / "small.py").write_text("pass\n")
    rows = {("module", f"{name}.py"): "a reason" for name in ("large", "small", "gone")}
    rest = "has a row in EXCEPTIONS, but is not too large, or not there"
    assert sorted(wrong(tmp_path, rows)) == [
        f"module {each}.py: {rest}" for each in ("gone", "small")
    ]
