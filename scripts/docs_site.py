"""Hooks of MkDocs: what the site has besides the pages under docs and their HTML.

- HTML comments are left out. Those with code set up what the examples of a page take for granted,
  and only the tests read them.
- Files outside of docs that the navigation names, or that a page links, belong to the site too.
- Each page is also served as Markdown: `howto/queues.md` beside `howto/queues.html`.
- `llms.txt` lists all pages in the order of the navigation, and `llms-full.txt` has their text
  (https://llmstxt.org).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure import StructureItem
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = "docs/"
# What a page is made of, as far as it matters here; code is matched so that it stays as it is.
_PART: Final = re.compile(
    r"^(?P<fence>```+).*?^(?P=fence)$"
    r"|`[^`]+`"
    r"|(?P<comment>^<!--.*?-->\n?)"
    r"|(?P<start>\]\()(?P<target>[^)#:\s/][^)#:\s]*)",
    re.MULTILINE | re.DOTALL,
)
_SENTENCE: Final = re.compile(
    r"^(?=[\w`\[\"])(?:`[^`]*`|.|\n(?!\n))*?(?:\.(?=\s|$)|:?(?=\n\n))", re.MULTILINE
)
_FIRST: Final = "Start"  # the section of pages that are in none
_nav: list[StructureItem] = []


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of a folder where the navigation names it."""
    config.nav = _expanded(config.nav)
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files outside of docs."""
    seen = {f"{DOCS}{file.src_uri}" for file in files}
    waiting = [*seen, *_named(config.nav)]
    while waiting:
        path = waiting.pop()
        if not (ROOT / path).is_file():
            continue
        if path not in seen:
            seen.add(path)
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            parts = _PART.finditer((ROOT / path).read_text(encoding="utf-8"))
            waiting += {_resolved(path, part["target"]) for part in parts if part["target"]} - seen
    return files


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: Files) -> Navigation:
    """Keep the order of the pages."""
    _nav[:] = nav.items
    return nav


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page as readers get it, without comments."""
    path = Path(str(page.file.abs_src_path)).relative_to(ROOT).as_posix()
    text = _relinked(markdown, path, posixpath.dirname(page.file.src_uri))
    page.meta.setdefault("description", _description(text))
    return text


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the page's Markdown, and let empty heads of tables not count as heads."""
    name = posixpath.basename(page.file.src_uri)
    html = html.replace("<th></th>", "<td></td>")
    return f'{html}\n<p data-search-exclude><a href="{name}">This page as Markdown</a></p>'


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Name the theme's search for those who cannot see it."""
    return output.replace(' role="dialog"', ' role="dialog" aria-label="Search"')


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write the copies of the pages and the files for language models."""
    site = Path(config.site_dir)
    title = f"# {config.site_name}\n\n> {config.site_description}\n"
    listed, whole = [title], [title]
    section = ""
    for name, page in sorted(_in_order(_nav), key=lambda each: each[0] != _FIRST):
        assert page.markdown is not None
        address = urljoin(config.site_url or "", page.file.src_uri)
        (site / page.file.src_uri).write_text(page.markdown, encoding="utf-8")
        if name != section:
            section = name
            listed.append(f"\n## {name}\n\n")
        listed.append(f"- [{page.title}]({address}): {page.meta['description']}\n")
        whole.append(
            f"\n---\n\nPage: {address}\n\n{_relinked(page.markdown, page.file.src_uri, '')}"
        )
    (site / "llms.txt").write_text("".join(listed), encoding="utf-8")
    (site / "llms-full.txt").write_text("".join(whole), encoding="utf-8")


def _expanded(entry: Any) -> Any:
    """Return a part of the navigation with the pages of folders, in the order of their index."""
    if isinstance(entry, list):
        return [_expanded(each) for each in entry]
    if isinstance(entry, dict):
        return {title: _expanded(below) for title, below in entry.items()}
    if not entry.endswith("/"):
        return entry
    index = (ROOT / DOCS / entry / "index.md").read_text(encoding="utf-8")
    names = {path.name for path in (ROOT / DOCS / entry).glob("*.md")} - {"index.md"}
    in_order = sorted(names, key=lambda name: index.find(f"({name})"))
    return [f"{entry}{name}" for name in ("index.md", *in_order)]


def _named(entry: Any) -> Iterator[str]:
    """Give the paths that a part of the navigation names."""
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from _named(each)


def _in_order(items: Iterable[StructureItem], name: str = _FIRST) -> Iterator[tuple[str, Page]]:
    """Give each page with the titles of the sections that it is in."""
    for item in items:
        if isinstance(item, Page):
            yield name, item
        elif isinstance(item, Section):
            title = item.title if item.parent is None else f"{name}: {item.title}"
            yield from _in_order(item.children, title)


def _relinked(text: str, path: str, base: str) -> str:
    """Return the text of the page at `path` without comments, with links from the folder `base`."""

    def replaced(part: re.Match[str]) -> str:
        if part["comment"]:
            return ""
        if not part["target"]:
            return part[0]
        target = _resolved(path, part["target"]).removeprefix(DOCS)
        return part["start"] + posixpath.relpath(target, base or ".")

    return _PART.sub(replaced, text)


def _resolved(path: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _description(text: str) -> str:
    """Return the first sentence of a page, as plain text."""
    prose = _PART.sub(lambda part: "" if part["fence"] else part[0], text)
    found = _SENTENCE.search(prose)
    plain = re.sub(r"\[([^]]+)\]\([^)]*\)|[*`]", r"\1", found[0] if found else "")
    return " ".join(plain.split()).removesuffix(":")
