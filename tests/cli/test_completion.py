"""What a shell completes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.processes import command


def completed(folder: Path, *words: str) -> list[str]:
    """Return what bash offers for the last of the words, as click gives it: type, value."""
    environment = {
        **os.environ,
        "_HOLDFAST_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["holdfast", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(command(), cwd=folder, env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with modules that raise if they are imported."""
    (tmp_path / "shop" / "parts").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / ".hidden").mkdir()
    texts = {
        "store.py": 'app = App("store")\nraise SystemExit(1)\n',
        "shop/__init__.py": 'import holdfast\nshop: holdfast.App = holdfast.App("shop")\n',
        "shop/parts/__init__.py": "",
        "shop/parts/mail.py": 'mail = App("mail")\nother = App("other")\nraise ValueError\n',
        "shop/plain.py": "def f():\n    app = App('inner')\n",
        "notes/draft.py": 'app = App("draft")\n',
        ".hidden/app.py": 'app = App("hidden")\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "words", [["worker"], ["dev"], ["start", "--app"], ["runs", "fork", "--app"]]
)
def test_apps_are_found_without_importing_their_modules(folder: Path, words: list[str]) -> None:
    found = ["shop.parts.mail:mail", "shop.parts.mail:other", "shop:shop", "store:app"]
    assert sorted(completed(folder, *words, "s")) == [f"plain,{each}" for each in found]
    assert completed(folder, *words, "sto") == ["plain,store:app"]


def test_a_path_is_left_to_the_shell(folder: Path) -> None:
    assert completed(folder, "worker", "./st") == ["file,./st"]


def test_commands_are_completed(folder: Path) -> None:
    assert completed(folder, "runs", "wh") == ["plain,why"]
