"""`holdfast docs`: the documentation of this release, without a network."""

from __future__ import annotations

import click

from holdfast.cli.answers import Answer
from holdfast.cli.framework import Group, command, option, sources


@click.group(
    "docs",
    cls=Group,
    sources=sources(__name__, "search", "show", "list:list_pages"),
    examples=(
        "holdfast docs search retry a step",
        "holdfast docs show howto/queues",
        "holdfast docs show skill > AGENTS.md",
    ),
)
def docs() -> None:
    """Search and read the documentation of this release.

    The page skill says what coding agents have to know. `holdfast mcp --docs` gives agents the
    same as tools.
    """


@command("search", examples=("holdfast docs search retry a step",))
@click.argument("words", nargs=-1, required=True)
@option("--limit", type=click.IntRange(1, 50), default=8)
def search(words: tuple[str, ...], limit: int) -> None:
    """List the sections that fit some words best. Exit code 1 if none does."""
    from holdfast.docs import search_pages

    found = search_pages(" ".join(words), limit)
    lines = [f"{each.page}: {each.heading}\n    {each.line}" for each in found]
    text = "\n".join(lines) or "no section has these words"
    Answer(found, text, ok=bool(found)).write()


@command("show", examples=("holdfast docs show howto/queues",))
@click.argument("page")
def show(page: str) -> None:
    """Write a page as Markdown: by its name, howto/queues, or the last part of it."""
    from holdfast.docs import read_page

    text = read_page(page)
    Answer({"page": page, "text": text}, text).write()


@command("list", examples=("holdfast docs list",))
def list_pages() -> None:
    """List all pages with their titles."""
    from holdfast.docs import pages

    found = pages()
    Answer(found, "\n".join(f"{name}: {title}" for name, title in found.items())).write()
