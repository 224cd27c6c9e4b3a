"""`holdfast init`: each project is clean and does what its README says; the rest is refused."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast.cli.commands.init import STARTERS
from tests.cli.processes import call
from tests.docs.blocks import read_blocks, read_commands
from tests.docs.terminals import Terminals

# What a reader sees in the first terminal before the next command is typed.
AWAITED = {
    "holdfast approvals": "select count(*) > 0 from holdfast.tasks where kind = 'approval'",
    "holdfast schedules": "select count(*) > 0 from holdfast.schedules",
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(kind: str, name: str = "travel") -> Path:
    done = call("init", kind, name)
    assert done.returncode == 0, done.stderr
    return Path(name).resolve()


def check(*command: str, cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", STARTERS)
def test_a_project_is_clean(kind: str) -> None:
    folder = made(kind)
    code = sorted(path.name for path in folder.glob("*.py"))
    packages = {
        ".".join(path.parent.relative_to(folder).parts) for path in folder.glob("*/**/*.py")
    }
    check("ruff", "check", "--isolated", "--no-cache", "--select", "E,F,I,B,UP", ".", cwd=folder)
    check("ruff", "format", "--isolated", "--no-cache", "--check", cwd=folder)
    schema = ("--builtin-schema", "vendor.compose-spec")
    check("check_jsonschema", *schema, "compose.yaml", cwd=folder)
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    setuptools = project["tool"]["setuptools"]
    tests = {"test_workflows.py"} & set(code)
    assert sorted([*(f"{module}.py" for module in setuptools["py-modules"]), *tests]) == code
    assert set(setuptools.get("packages", [])) == packages
    assert project["project"]["name"] == "travel"
    assert 'App("travel")' in (folder / "workflows.py").read_text()


def test_the_projects_have_types(mypy_cache: str) -> None:
    for kind in STARTERS.keys() - {"django"}:  # whose models have types only with a plugin
        folder = made(kind, f"some_{kind}")
        code = sorted(path.name for path in folder.glob("*.py"))
        check("mypy", "--strict", "--cache-dir", mypy_cache, *code, cwd=folder)


@pytest.mark.parametrize("kind", STARTERS)
async def test_a_project_does_what_its_readme_says(kind: str, database_url: str) -> None:
    folder = made(kind)
    terminals = Terminals(folder, database_url)
    try:
        for block in read_blocks(folder / "README.md"):
            assert block.language == "console"
            for command, comment in read_commands(block):
                for beginning, query in AWAITED.items():
                    if command.startswith(beginning) and "decide" not in command:
                        await terminals.until(query)
                await terminals.type(command, comment)
    finally:
        await terminals.close()


@pytest.mark.parametrize("name", ["my-shop", "1st", "_", "a b", "für", "holdfast", "shop_"])
def test_a_name_that_no_project_can_have_is_refused(name: str) -> None:
    done = call("init", "shop", name)
    assert done.returncode == 2
    assert f"{name!r} cannot be the name of the project" in done.stderr
    assert list(Path().iterdir()) == []


def test_a_folder_with_files_is_refused_and_left_alone() -> None:
    Path("shop").mkdir()
    Path("shop", "mine.txt").write_text("mine")
    done = call("init", "shop")
    assert done.returncode == 2
    assert "shop is there, and is not empty" in done.stderr
    assert [path.name for path in Path("shop").iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_taken_and_a_file_is_not() -> None:
    Path("empty").mkdir()
    assert call("init", "jobs", "empty").returncode == 0
    Path("file").touch()
    assert call("init", "jobs", "file").returncode == 2
    done = call("init", "jobs", "file/below")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def test_a_project_is_written_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from holdfast.cli.root import holdfast

    write = Path.write_text

    def full(path: Path, text: str, encoding: str | None = None) -> int:
        if path.name == "compose.yaml":
            write(path, text[:10], encoding)
            raise OSError(28, "No space left on device")
        return write(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", full)
    done = CliRunner().invoke(holdfast, ["init", "shop"])
    assert done.exit_code == 2
    assert "No space left on device" in done.output
    assert list(Path().iterdir()) == []


def test_fastapi_has_a_name_that_is_not_that_of_the_package() -> None:
    assert call("init", "fastapi").returncode == 0
    assert Path("web", "api.py").exists()
    assert call("init", "fastapi", "fastapi").returncode == 2
