"""What the command line says about itself."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from holdfast import __version__
from holdfast.cli import exits
from holdfast.cli.root import holdfast
from tests.cli.processes import SAMPLE, command, environment


def all_commands() -> list[tuple[str, ...]]:
    """Every command by its path."""
    found: list[tuple[str, ...]] = []

    def walk(group: click.Group, path: tuple[str, ...]) -> None:
        with click.Context(group) as context:
            for name in group.list_commands(context):
                child = group.get_command(context, name)
                found.append((*path, name))
                if isinstance(child, click.Group):
                    walk(child, (*path, name))

    walk(holdfast, ())
    return found


@pytest.mark.parametrize("path", all_commands(), ids=" ".join)
def test_every_command_teaches_with_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(holdfast, [*path, "--help"])
    assert result.exit_code == 0
    assert f"holdfast {' '.join(path)}" in result.output.partition("Examples:")[2]


def test_help_names_every_exit_code() -> None:
    shown = CliRunner().invoke(holdfast, ["--help"]).output.partition("Exit codes:")[2]
    for code, meaning in exits.MEANINGS:
        assert f"{code:>3}  {meaning}" in shown


def test_version_is_answered_without_importing_the_rest() -> None:
    script = (
        "import sys; sys.argv = ['holdfast', '--version']\n"
        "from holdfast.cli import main; main()\n"
        "heavy = {'asyncio', 'asyncpg', 'click', 'msgspec', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"holdfast {__version__}\n", "")


def test_help_imports_neither_rich_nor_the_engine() -> None:
    script = (
        "import sys; sys.argv = ['holdfast', '--help']\n"
        "from holdfast.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'asyncio', 'asyncpg', 'holdfast.worker', 'msgspec', 'rich', 'uvloop'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_that_ends_searches_nothing_that_exists_for_garbage() -> None:
    """The interpreter would, more than once: a quarter of what a short command takes."""
    script = (
        "import atexit, gc, os, sys; sys.argv = ['holdfast', '--help']\n"
        "atexit.register(lambda: os._exit(0 if gc.get_freeze_count() > 10_000 else 7))\n"
        "from holdfast.cli import main; main()"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_no_garbage_is_searched_while_a_worker_is_loaded() -> None:
    """Each search visits all that exists, and finds nearly nothing."""
    script = (
        "import atexit, gc, os, sys\n"
        f"sys.argv = ['holdfast', 'worker', {SAMPLE!r}, '--database', 'postgresql://127.0.0.1:1/x']\n"
        "searches = lambda: sum(each['collections'] for each in gc.get_stats())\n"
        "def end():\n"
        "    from holdfast.cli.process.interpreter import skip_what_exists\n"
        "    skip_what_exists()\n"
        "    os._exit(searches() - before if 'holdfast.worker.worker' in sys.modules else 99)\n"
        "atexit.register(end)\n"
        "from holdfast.cli import main\n"
        "before = searches()\n"
        "main()"
    )
    env = environment({"PYTHONHASHSEED": "0"})
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True)
    assert (done.returncode, done.stderr.count(b"no server answers")) == (0, 1)


def test_a_worker_starts_again_with_its_hash_seed_before_it_imports_the_rest() -> None:
    """All that it has imported by then is imported twice."""
    script = (
        "import os, sys; sys.argv = ['holdfast', 'worker', 'shop:app']\n"
        "os.environ.pop('PYTHONHASHSEED', None)\n"
        "def execve(program, arguments, environment):\n"
        "    heavy = {'click', 'holdfast.cli.root', 'holdfast.errors'} & set(sys.modules)\n"
        "    sys.exit(f'imported {heavy}' if heavy else 7)\n"
        "os.execve = execve\n"
        "from holdfast.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (7, "")


def test_an_unknown_command_is_a_usage_error() -> None:
    done = subprocess.run(command("fly"), capture_output=True, text=True)
    assert done.returncode == exits.USAGE
    assert "No such command 'fly'" in done.stderr


def test_the_package_is_a_command_and_h_is_help() -> None:
    shown = [
        subprocess.run(command(*arguments), capture_output=True, text=True, check=True).stdout
        for arguments in (["-h"], ["--help"], ["runs", "show", "-h"])
    ]
    assert shown[0] == shown[1]
    assert "Usage: holdfast runs show" in shown[2]


@pytest.mark.parametrize("path", [(), *all_commands()], ids=" ".join)
def test_the_list_of_a_group_has_whole_sentences(path: tuple[str, ...]) -> None:
    listed = CliRunner().invoke(holdfast, [*path, "--help"]).output.partition("Commands:")[2]
    assert "...\n" not in listed.partition("Examples:")[0]
