"""`holdfast docs`: the pages of this release, and what a search of them finds."""

from __future__ import annotations

import re

import pytest

from holdfast.cli import exits
from holdfast.docs import SKILL, pages, read_page, without_links
from tests.cli.conftest import CommandLine
from tests.docs.blocks import ROOT


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("retry a step", "howto/retries-and-errors"),
        ("wait for a signal", "howto/signals-and-timeouts"),
        ("FIFO queue", "howto/queues"),
        ("ctx.patched", "howto/versions"),
        ("test without a database", "howto/testing"),
        ("approvals", "howto/approvals"),
        ("PgBouncer pooler", "howto/deployment"),
        ("rate limit per customer", "howto/flow-control"),
        ("idempotency key", "howto/idempotency-and-transactions"),
        ("run on Kubernetes", "howto/containers"),
        ("Celery", "howto/celery"),
        ("alert", "howto/alerts"),
    ],
)
def test_a_search_finds_the_page_among_the_first_five(
    cli: CommandLine, words: str, page: str
) -> None:
    found = cli.json("docs", "search", *words.split(), "--limit", "5")
    assert page in {each["page"] for each in found}, found
    assert all(each["heading"] for each in found)


def test_what_is_not_there_is_said(cli: CommandLine) -> None:
    assert "no section" in cli("docs", "search", "xyzzy", code=exits.FAILED).stderr
    unknown = cli("docs", "show", "howto/queus", code=exits.USAGE)
    assert "did you mean howto/queues" in unknown.stderr
    several = cli("docs", "show", "alerts", code=exits.USAGE)
    assert "2 pages have the name 'alerts': howto/alerts, reference/cli/alerts" in several.stderr


def test_a_page_is_shown_by_its_name_or_the_last_part_of_it(cli: CommandLine) -> None:
    whole = cli("docs", "show", "howto/fork-and-retry").stdout
    assert whole.startswith("# ")
    assert cli("docs", "show", "fork-and-retry").stdout == whole
    assert cli("docs", "show", "docs/howto/fork-and-retry.md").stdout == whole
    assert cli.json("docs", "show", "fork-and-retry")["text"] in whole


def test_all_pages_are_listed_and_none_has_a_hidden_block(cli: CommandLine) -> None:
    names = {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
    }
    listed = cli.json("docs", "list")
    assert listed.keys() == names
    assert all(listed.values())
    assert [name for name in names if re.search("^<!--", read_page(name), re.MULTILINE)] == []


def test_the_skill_names_pages_and_commands_that_exist(cli: CommandLine) -> None:
    text = without_links(read_page(SKILL))
    shown = re.findall(r"holdfast docs show ([a-z/-]+)", text)
    assert len(shown) > 2
    assert set(shown) <= pages().keys()
    commands = re.findall(r"^holdfast (\w+)(?: (\w+))?(.*?)(?:  |$)", text, re.MULTILINE)
    assert len(commands) > 8
    for group, below, rest in commands:
        arguments = [group] if group not in ("runs", "docs") else [group, below]
        shown = cli(*arguments, "--help").stdout
        assert set(re.findall(r"--[a-z-]+", rest)) <= set(re.findall(r"--[a-z-]+", shown)), group
