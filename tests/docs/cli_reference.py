"""The reference of the command line, made from the help of its commands.

`python -m tests.docs.cli_reference` writes it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli import exits
from holdfast.cli.root import holdfast

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
_WIDTH = 92

_HEAD = """\
# The command line

This page is made from `holdfast --help` and the help of each command; a test compares them.

With `--json` a command answers in JSON on stdout, for scripts; messages for people go to
stderr. The global options may be given before or after a command.

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


def render() -> str:
    """Write the page."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in exits.MEANINGS)
    parts = [_HEAD + codes]
    for names, text in _helps(holdfast, None, "holdfast"):
        parts.append(f"\n## {names}\n\n```text\n{text}\n```\n")
    return "".join(parts)


def _helps(
    command: click.Command, parent: click.Context | None, name: str
) -> Iterator[tuple[str, str]]:
    """Give the help of a command, and of those below it."""
    context = click.Context(
        command,
        parent=parent,
        info_name=name,
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
        **command.context_settings,
    )
    lines = [line.rstrip() for line in command.get_help(context).strip().splitlines()]
    yield context.command_path, "\n".join(lines)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None, f"{each} is listed, and is not there"
            yield from _helps(below, context, each)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
