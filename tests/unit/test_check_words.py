"""The check of words finds what it should, and leaves other words alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import check_words


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that checks one file and returns the rules that it breaks."""
    monkeypatch.setattr(check_words, "ROOT", tmp_path)

    def broken(text: str, path: str = "src/holdfast/page.py") -> list[str]:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        monkeypatch.setattr(check_words, "files", lambda: [path])
        return [finding.rule.what.split("|")[0].strip() for finding in check_words.findings()]

    return broken


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("open_heirs = 1\n", ["heir"]),
        ("their = 1\n", []),
        ("# it is no run\n", ["is no"]),
        ("# it is no longer a run\n", []),
        ("# the run goes on\n", ["go on"]),
        ("# the class goes on to say\n", []),
        ("def f():\n    '''x'''\n", []),
        ('def f() -> int:\n    """What it is."""\n', ["docstring"]),
        ('def f() -> int:\n    """Return what it is."""\n', []),
        ('class A:\n    @property\n    def f(self) -> bool:\n        """Whether it is."""\n', []),
    ],
)
def test_each_rule_finds_its_words_and_no_others(
    check: Callable[..., list[str]], text: str, rules: list[str]
) -> None:
    assert check(text) == rules


def test_rules_for_code_leave_pages_alone(check: Callable[..., list[str]]) -> None:
    assert check("The news of the day.\n", "docs/page.md") == []
