"""The wheel in an empty environment does what the README promises."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.commands.init import STARTERS
from tests.cli.processes import until
from tests.docs.blocks import ROOT, read_blocks
from tests.docs.terminals import free_port
from tests.package.installed import Installed, run

# What needs the package of an extra to be imported; `holdfast` does it when that is asked for.
OF_EXTRAS = {
    *(
        ("holdfast.agents", missing)
        for missing in ("agents", "langchain", "pydantic", "pydantic_ai")
    ),
    *(("holdfast.django", missing) for missing in ("asgiref", "django", "psycopg")),
    ("holdfast.django.management.commands", "django"),
    ("holdfast.mcp", "mcp"),
    ("holdfast", "pytest"),
    ("holdfast.tracing", "opentelemetry"),
}


def write_files_of(page: str) -> None:
    """Write the files that a page shows."""
    for block in read_blocks(ROOT / page):
        if block.file is not None:
            Path(block.file).write_text(block.text)


def test_it_says_its_version(installed: Installed) -> None:
    assert installed.call("holdfast", "--version") == f"holdfast {holdfast.__version__}\n"
    where = installed.call("python", "-c", "import holdfast; print(holdfast.__file__)")
    assert Path(where).is_relative_to(installed.folder)


def test_it_has_all_that_it_asks_for(installed: Installed) -> None:
    checked = run(sys.executable, "-m", "pip", "--python", str(installed.python), "check")
    assert "No broken requirements" in checked


def test_each_module_can_be_imported_without_an_extra(installed: Installed) -> None:
    Path("each.py").write_text(
        "import importlib, pkgutil, holdfast\n"
        "for found in pkgutil.walk_packages(holdfast.__path__, 'holdfast.'):\n"
        "    if not found.name.endswith('__main__'):\n"
        "        try: importlib.import_module(found.name)\n"
        "        except ImportError as error: print(found.name, error.name)\n"
        "        except holdfast.errors.ConfigurationError as error:\n"
        "            print(found.name, error.__cause__.name)\n"
    )
    lines = [line.split() for line in installed.call("python", "each.py").splitlines()]
    assert {(name.rpartition(".")[0], missing) for name, missing in lines} == OF_EXTRAS


def test_it_has_the_documentation(installed: Installed) -> None:
    listed = json.loads(installed.call("holdfast", "docs", "list", "--json"))
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in ROOT.glob("docs/**/*.md")}
    expected = {page.as_posix() for page in pages if page.parent.name != "api"}
    assert listed.keys() == expected
    assert "howto/queues" in installed.call("holdfast", "docs", "search", "FIFO", "queue")
    installed.call("holdfast", "init", "jobs", "mails")
    guide = Path("mails/AGENTS.md").read_text()
    assert guide.startswith("# mails\n")
    assert "## Rules for workflow code" in guide


@pytest.mark.slow
def test_the_demo_runs(installed: Installed) -> None:
    assert "every effect happened once, as recorded" in installed.call("holdfast", "demo")


def test_the_program_of_the_readme_runs(installed: Installed, database_url: str) -> None:
    write_files_of("README.md")
    at = {"HOLDFAST_DATABASE_URL": database_url}
    with installed.running("holdfast", "dev", "shop.py", **at) as log:
        until(lambda: "ready" in log.read_text() or None, "a worker")
        start = installed.call("holdfast", "start", "checkout", '"ann"', "--json", **at)
        run_id = json.loads(start)["run_id"]
        installed.call("holdfast", "runs", "signal", run_id, "packed", **at)
        until(
            lambda: "sleep" in installed.call("holdfast", "runs", "why", run_id, **at) or None,
            "the three days",
        )
        assert "mail to ann: receipt-ann-4200" in log.read_text()


def test_the_program_for_fastapi_runs(with_tools: Installed, database_url: str) -> None:
    write_files_of("docs/howto/fastapi.md")
    at = {"HOLDFAST_DATABASE_URL": database_url}
    port = free_port()
    serve = ("-m", "uvicorn", "api:api", "--port", str(port))

    def ask(path: str, body: object = None) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()

    with (
        with_tools.running("holdfast", "worker", "shop:app", **at),
        with_tools.running("python", *serve, **at) as log,
    ):
        until(lambda: "running on" in log.read_text() or None, "the server")
        status, body = ask("/orders/7", {"customer": "ann", "cents": 4200})
        assert (status, json.loads(body)["created"]) == (202, True)
        assert ask("/orders/7/packed", {})[0] == 204
        until(lambda: b"completed" in ask("/orders/7")[1] or None, "the end of the run")


@pytest.mark.parametrize("kind", sorted(STARTERS.keys() - {"django"}))  # whose README runs them
def test_the_tests_of_a_starter_pass(with_tools: Installed, kind: str) -> None:
    with_tools.call("holdfast", "init", kind, "travel")
    said = with_tools.call("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "travel")
    assert f"{3 if kind == 'jobs' else 2} passed" in said


@pytest.mark.parametrize(
    ("arguments", "extra"), [(("mcp",), "mcp"), (("archive", "list"), "s3")], ids=["mcp", "s3"]
)
def test_an_extra_that_is_missing_is_named(
    installed: Installed, database_url: str, arguments: tuple[str, ...], extra: str
) -> None:
    at = {"HOLDFAST_DATABASE_URL": database_url, "HOLDFAST_ARCHIVE": "s3://nowhere/archive"}
    said = installed.call("holdfast", *arguments, code=2, **at)
    assert f"pip install 'holdfast[{extra}]'" in said
