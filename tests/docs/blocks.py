"""The code blocks of a Markdown page, in order.

A block whose paragraph before begins with a file's name in backticks is that file, if its
language may be that of the file: only a block of Python is a `.py`. A block in
an HTML comment (`<!-- python` … `-->`) is not shown, and runs like any other: it sets up what
the page takes for granted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
AT_THE_ROOT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
PAGES = sorted([*(ROOT / name for name in AT_THE_ROOT), *ROOT.glob("docs/**/*.md")])

_BLOCK = re.compile(
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$|^<!-- (?P<hidden>\w+)\n(?P<setup>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"`(?P<name>[\w./-]+\.(?:py|toml|service|yaml|txt)|Dockerfile)`")


@dataclass(frozen=True)
class Block:
    """One block: `file` is the name of the file that it shows, if any; `line` counts from 1."""

    language: str
    text: str
    line: int
    file: str | None
    hidden: bool


def read_blocks(page: Path) -> Iterator[Block]:
    """Give a page's blocks."""
    source = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(source):
        before = source[: found.start()]
        paragraph = before.rstrip().rpartition("\n\n")[2]
        file = _FILE.match(paragraph)
        language = found["language"] or found["hidden"] or ""
        may_show = {"python"} if file and file["name"].endswith(".py") else {"text", "yaml"}
        yield Block(
            language=language,
            text=found["text"] or found["setup"] or "",
            line=before.count("\n") + 2,
            file=file["name"] if file and language in may_show else None,
            hidden=found["hidden"] is not None,
        )


def read_commands(block: Block) -> Iterator[tuple[str, str]]:
    """Give the commands of a console block, each with its comment."""
    for line in block.text.replace("\\\n", " ").splitlines():
        command, _, comment = re.sub(r"(^|  +)# ", "\0", line, count=1).partition("\0")
        if command.strip():
            yield command.strip(), comment.strip()
