"""The reference of the command line, made from the help of its commands: a page a command.

`python -m tests.docs.cli_reference` writes it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli import exits
from holdfast.cli.root import holdfast
from tests.docs.api_reference import write

FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "cli"
_WIDTH = 92

_HEAD = """\
# The command line

These pages are made from `holdfast --help` and the help of each command; a test compares them.

With `--json` a command answers in JSON on stdout, for scripts; messages for people go to
stderr. The global options may be given before or after a command.

A list is an array (`queues list`, `workers`, `doctor`). `runs list` answers with a page, which is
an object: `{"runs": […], "cursor": …, "searched_until": …}`. A change of named runs is an array
with `run_id` and `changed` of each, one by filters an object with `matched`, `changed` and
`unchanged`.

## Completion

A line in the start-up file of the shell makes it complete commands, options, and the apps of the
current folder, which are found without importing them:

```text
eval "$(_HOLDFAST_COMPLETE=bash_source holdfast)"   # zsh: zsh_source
_HOLDFAST_COMPLETE=fish_source holdfast | source    # fish
```

## Exit codes

| code | meaning |
|---|---|
"""
_TABLE = """
| command | what it does |
|---|---|
"""


def render() -> dict[str, str]:
    """Return the text of each page by its file's name."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in exits.MEANINGS)
    (*_, everything), *commands = _helps(holdfast, None, "holdfast")
    pages = {"index.md": f"{_HEAD}{codes}\n## Commands\n{_TABLE}"}
    for name, short, text in commands:
        _, command, *below = name.split()
        file = f"{command}.md"
        if not below:
            pages["index.md"] += f"| [`{name}`]({file}) | {short} |\n"
            pages[file] = f"# {name}\n\n{short}\n"
        heading = f"\n## {name}\n" if below else ""
        pages[file] += f"{heading}\n```text\n{text}\n```\n"
    pages["index.md"] += f"\n## holdfast\n\n```text\n{everything}\n```\n"
    return pages


def _helps(
    command: click.Command, parent: click.Context | None, name: str
) -> Iterator[tuple[str, str, str]]:
    """Give a command's path, its help in a sentence and the whole of it; then those below it."""
    context = click.Context(
        command,
        parent=parent,
        info_name=name,
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
        **command.context_settings,
    )
    lines = [line.rstrip() for line in command.get_help(context).strip().splitlines()]
    yield context.command_path, command.get_short_help_str(200), "\n".join(lines)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None, f"{each} is listed, and is not there"
            yield from _helps(below, context, each)


if __name__ == "__main__":
    write(FOLDER, render())
