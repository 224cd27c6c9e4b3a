"""What a user gets: the wheel and the sdist, and a Python that has the wheel and nothing else.

All test processes of a session share one build and one environment.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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


@pytest.fixture(scope="session")
def with_tools(server_homes: Path, installed: Installed) -> Installed:
    """The same environment, with FastAPI and pytest in a folder of their own."""

    def make(folder: Path) -> None:
        python = str(installed.python)
        install = ("install", "--quiet", "--target", str(folder), "fastapi", "pytest")
        run(sys.executable, "-m", "pip", "--python", python, *install)

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
