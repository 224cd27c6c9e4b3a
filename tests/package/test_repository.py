"""The files at the root of the repository: valid by their schemas, and true of the programs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.processes import call
from tests.docs.blocks import ROOT

WORKFLOWS = ROOT / ".github" / "workflows"
SCHEMAS = {
    "compose.yaml": "compose-spec",
    ".github/workflows/test.yml": "github-workflows",
    ".github/workflows/release.yml": "github-workflows",
    ".github/ISSUE_TEMPLATE/bug.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/wish.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
}
TEST: dict[str, Any] = yaml.safe_load((WORKFLOWS / "test.yml").read_text())["jobs"]["test"]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_file_fits_its_schema(name: str) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    done = subprocess.run(
        [*check, f"vendor.{SCHEMAS[name]}", str(ROOT / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_runs_the_tests_on_each_supported_python_and_postgresql() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    matrix = TEST["strategy"]["matrix"]
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert matrix["python"] == supported
    versions = {*matrix["postgresql"], *(each["postgresql"] for each in matrix["include"])}
    assert versions == {"14", "15", "16", "17", "18"}
    assert TEST["steps"][-1] == {"run": ".ci/run"}


@pytest.mark.parametrize("service", [name for name in COMPOSE["services"] if name != "db"])
def test_the_commands_of_the_compose_file_have_their_options(service: str) -> None:
    command: list[str] = COMPOSE["services"][service]["command"]
    shown = call(command[0], "--help").stdout
    assert [each for each in command if each.startswith("--") and each not in shown] == []
    files = [each for each in command if each.endswith(".py")]
    assert all((ROOT / file).is_file() for file in files)


def test_the_tokens_that_the_compose_file_asks_for_are_for_one_user(tmp_path: Path) -> None:
    head = (ROOT / "compose.yaml").read_text().partition("\nname:")[0]
    [command] = re.findall(r"^#   (.*> tokens\))", head, re.MULTILINE)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        command,
        shell=True,
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o600


def test_pre_commit_and_the_dev_container_call_targets_that_exist() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    makefile = (ROOT / "Makefile").read_text()
    for command in (hooks[0]["entry"], container["postCreateCommand"]):
        target = re.escape(command.split()[-1])
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), command
