"""The documentation of this release, to read and search without a network.

In the wheel, the pages stand in the folder `pages` beside this file; in a clone, they are those
under `docs`.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import msgspec

from holdfast.errors import InvalidInput

SKILL: Final = "skill"
"""The page for coding agents."""

_HERE: Final = Path(__file__).parent
_FOLDERS: Final = (_HERE / "pages", _HERE.parents[2] / "docs")
# Comments set up what the examples of a page take for granted, for the tests of the pages alone.
_COMMENT: Final = re.compile(r"^<!--.*?-->\n?", re.MULTILINE | re.DOTALL)
_FRONT: Final = re.compile(r"\A---\n.*?^---\n", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[([^]]+)\]\((?!https?:)([^)#]+)\.md(?:#[^)]*)?\)")
_HEADING: Final = re.compile(r"^#{1,3} (.+)$", re.MULTILINE)
_CODE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_WORD: Final = re.compile(r"[a-z0-9_]+")
_IN_TITLE, _IN_HEADING = 4, 3  # what a word there counts for, beside one in the text
_SHOWN: Final = 200  # characters


class Found(msgspec.Struct, frozen=True):
    """A section that a search found: its page, its heading, and a line of it."""

    page: str
    heading: str
    line: str


def pages() -> dict[str, str]:
    """Return the title of each page by its name, such as `howto/queues`; sorted."""
    return {name: _title(text) for name, text in _texts().items()}


def read_page(name: str) -> str:
    """Return a page as Markdown, by its name or the last part of it.

    Raises InvalidInput for a name that no page has, or several have.
    """
    texts = _texts()
    wanted = name.strip("/").removesuffix(".md").removeprefix("docs/")
    if wanted in texts:
        return texts[wanted]
    found = [each for each in texts if each.rpartition("/")[2] == wanted]
    if len(found) == 1:
        return texts[found[0]]
    if found:
        raise InvalidInput(f"{len(found)} pages have the name {name!r}: {', '.join(found)}")
    similar = get_close_matches(wanted, texts, n=3, cutoff=0.5)
    meant = f"; did you mean {' or '.join(similar)}?" if similar else ""
    raise InvalidInput(f"no page has the name {name!r}{meant}")


def without_links(page: str) -> str:
    """Return a page to stand alone: without its front matter, links as commands that show them."""
    text = _FRONT.sub("", page)
    return _LINK.sub(lambda link: f"{link[1]} (`holdfast docs show {link[2]}`)", text)


def search_pages(words: str, limit: int = 8) -> list[Found]:
    """Return the sections that fit words best, the best first, at most `limit`."""
    wanted = set(_words(words))
    sections = _sections()
    seen = Counter(word for _, _, _, counts in sections for word in counts)
    scores: list[tuple[float, int]] = []
    for place, (_, _, _, counts) in enumerate(sections):
        score = sum(
            math.log(1 + len(sections) / seen[word]) * counts[word] / (counts[word] + 2)
            for word in wanted
            if word in counts
        )
        if score:
            scores.append((-score, place))
    best = [sections[place] for _, place in sorted(scores)[:limit]]
    return [Found(page, heading, _line(text, wanted)) for page, heading, text, _ in best]


@functools.cache
def _texts() -> dict[str, str]:
    """Return the text of each page as readers get it, by name."""
    folder = next((each for each in _FOLDERS if each.is_dir()), None)
    if folder is None:
        return {}
    found = {
        path.relative_to(folder).with_suffix("").as_posix(): path.read_text("utf-8")
        for path in folder.rglob("*.md")
    }
    return {name: _COMMENT.sub("", found[name]) for name in sorted(found)}


@functools.cache
def _sections() -> Sequence[tuple[str, str, str, Counter[str]]]:
    """Return page, heading, text and counted words of each section."""
    sections: list[tuple[str, str, str, Counter[str]]] = []
    for name, text in _texts().items():
        plain = _FRONT.sub("", text)
        title = _title(text)
        # A comment of Python looks like a heading.
        prose = _CODE.sub(lambda code: re.sub("^#", " ", code[0], flags=re.MULTILINE), plain)
        starts = [*_HEADING.finditer(prose)]
        ends = [each.start() for each in starts[1:]] + [len(plain)]
        for start, end in zip(starts, ends, strict=True):
            counts = Counter(_words(plain[start.end() : end]))
            for word in _words(start[1]):
                counts[word] += _IN_HEADING
            for word in _words(f"{title} {name}"):
                counts[word] += _IN_TITLE
            sections.append((name, start[1], plain[start.end() : end], counts))
    return sections


def _title(text: str) -> str:
    found = _HEADING.search(text)
    return found[1] if found else ""


def _words(text: str) -> list[str]:
    """Return the words of a text, without the s of plurals."""
    return [word.removesuffix("s") for word in _WORD.findall(text.lower())]


def _line(text: str, wanted: set[str]) -> str:
    """Return the line of a section that has most of the words."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("```")]
    best = max(lines, key=lambda line: len(wanted.intersection(_words(line))), default="")
    return best.strip()[:_SHOWN]
