"""What is in the wheel and in the sdist, and what they say about themselves."""

from __future__ import annotations

import email
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path, PurePosixPath

import holdfast
from tests.docs.blocks import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
JUNK_FOLDERS = {"__pycache__", "node_modules", "dist", "build", "site", "htmlcov", ".git", ".venv"}
JUNK_SUFFIXES = {".pyc", ".pyo", ".so", ".orig", ".rej", ".swp"}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_has_all_of_the_package_and_nothing_else(wheel: Path) -> None:
    package = ROOT / "src" / "holdfast"
    expected = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    references = {page for page in pages if page.startswith("reference/api/")}  # of docstrings
    expected |= {f"holdfast/docs/pages/{page}" for page in pages - references}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == expected
    kinds = {PurePosixPath(name).suffix for name in names}
    assert kinds >= {".py", ".sql", ".html", ".css", ".js", ".typed"}


def test_the_wheel_has_the_licence_of_each_thing_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        licences = {
            name.partition("/licenses/")[2]
            for name in archive.namelist()
            if ".dist-info/licenses/" in name
        }
    assert licences == {"LICENSE", "src/holdfast/server/pages/assets/htmx-LICENSE.txt"}
    assert metadata(wheel)["License-Expression"] == "Apache-2.0 AND 0BSD"


def test_the_metadata_are_those_of_the_project(wheel: Path) -> None:
    about = metadata(wheel)
    assert about["Name"] == "holdfast"
    assert about["Version"] == holdfast.__version__
    assert about["Requires-Python"] == ">=3.11"
    assert set(about.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    payload = about.get_payload(decode=True)
    assert isinstance(payload, bytes)
    assert payload.decode() == (ROOT / "README.md").read_text()


def test_the_sdist_has_what_builds_and_tests_the_package_and_no_junk(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = [PurePosixPath(name) for name in archive.getnames()]
    assert {name.parts[0] for name in names} == {f"holdfast-{holdfast.__version__}"}
    paths = [PurePosixPath(*name.parts[1:]) for name in names]
    assert {str(path) for path in paths} >= {
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "Makefile",
        "PKG-INFO",
        "src/holdfast/py.typed",
        "src/holdfast/sql/functions/core/commit.sql",
        "src/holdfast/server/pages/assets/app.css",
        "tests/conftest.py",
        "docs/tutorial.md",
        "examples/README.md",
    }
    junk = [
        str(path)
        for path in paths
        if path.suffix in JUNK_SUFFIXES
        or any(part in JUNK_FOLDERS or part.endswith("cache") for part in path.parts)
    ]
    assert junk == []
    assert sdist.stat().st_size < 5_000_000
