"""What the pages about hosts and platforms name: URLs that are read, and what Windows is told."""

from __future__ import annotations

import re
import sys
import tomllib

import pytest
from click.testing import CliRunner

from holdfast.cli.root import holdfast
from holdfast.database.urls import read_url
from tests.docs.blocks import ROOT, read_blocks

PAGE = ROOT / "docs" / "howto" / "hosted-databases.md"
URLS = re.findall(r"^HOLDFAST_\w*DATABASE_URL=(\S+)$", PAGE.read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("url", URLS)
def test_the_urls_of_hosts_are_read(url: str) -> None:
    target = read_url(url)
    [(host, port)] = target.hosts
    assert (target.password, port) == ("PASSWORD", 5432)
    assert target.user
    assert target.database
    assert host.startswith("/cloudsql/") or "." in host
    assert not target.parameters.settings  # no parameter is sent to the server as a setting


def test_each_host_of_the_page_has_its_url() -> None:
    heads = re.findall("^## (.+)$", PAGE.read_text(encoding="utf-8"), re.M)
    assert len(URLS) >= len(heads) - 1 == 5


def test_the_file_for_fly_is_toml_and_names_commands_that_exist() -> None:
    [text] = [block.text for block in read_blocks(PAGE) if "[processes]" in block.text]
    fly = tomllib.loads(text)
    for command in (fly["deploy"]["release_command"], fly["processes"]["worker"]):
        _, *arguments = command.split()
        assert CliRunner().invoke(holdfast, [*arguments, "--help"]).exit_code == 0
    assert fly["vm"][0]["processes"] == ["worker"]


def test_a_command_says_what_to_do_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    done = CliRunner().invoke(holdfast, ["docs", "list"])
    assert done.exit_code == 2
    assert "WSL 2" in done.output
