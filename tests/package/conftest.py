"""What a user gets: the wheel and the sdist, and a Python that has the wheel and nothing else.

All test processes of a session share one build and one environment.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.blocks import ROOT
from tests.package.installed import Installed, run


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder that the first test process fills, while the others wait for it."""
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / ".done"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def built(server_homes: Path) -> Path:
    """The folder with the sdist of this checkout, and the wheel that is built from the sdist."""
    return made_once(
        server_homes / "package" / "dist",
        lambda folder: run(
            sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)
        ),
    )


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def sdist(built: Path) -> Path:
    (found,) = built.glob("*.tar.gz")
    return found


@pytest.fixture(scope="session")
def installed(server_homes: Path, wheel: Path) -> Installed:
    """An environment that has the wheel, and what it asks for. Install nothing into it."""

    def make(folder: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", str(folder))
        python = str(folder / "bin" / "python")
        run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", str(wheel))

    return Installed(made_once(server_homes / "package" / "venv", make))


def with_requirements(*names: str) -> dict[str, Distribution]:
    """Return distributions of this environment, and all that they ask for, by name."""
    found, wanted = dict[str, Distribution](), [*names]
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name not in found:
            found[name] = distribution(name)
            asked = map(Requirement, found[name].requires or ())
            extra = {"extra": ""}
            wanted += [
                each.name for each in asked if not each.marker or each.marker.evaluate(extra)
            ]
    return found


@pytest.fixture(scope="session")
def with_tools(server_homes: Path, installed: Installed) -> Installed:
    """The same environment, with links to the FastAPI and pytest of this one in a folder."""

    def make(folder: Path) -> None:
        for tool in with_requirements("fastapi", "pytest").values():
            for file in tool.files or ():
                if file.parts[0] != "..":  # no programs
                    (folder / file).parent.mkdir(parents=True, exist_ok=True)
                    (folder / file).symlink_to(file.locate())

    added = made_once(server_homes / "package" / "tools", make)
    return Installed(installed.folder, {"PYTHONPATH": str(added)})


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the checkout is in reach of what a test runs."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "HOLDFAST_DATABASE_URL", "HOLDFAST_REDIS_URL", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    assert os.getcwd() != str(ROOT)
