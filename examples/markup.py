"""Plain text and Markdown as HTML: as much of it as `convert.py` needs."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator


def from_plain(text: str) -> str:
    """Return a plain text as HTML: paragraphs."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "".join(f"<p>{html.escape(paragraph)}</p>\n" for paragraph in paragraphs)


def from_markdown(text: str) -> str:
    """Return Markdown as HTML: headings, lists, code, paragraphs, links and emphasis."""
    return "".join(block(lines) for lines in blocks(text.splitlines()))


def blocks(lines: list[str]) -> Iterator[list[str]]:
    """Give the lines of each block: code in fences, a heading, or what stands together."""
    found: list[str] = []
    fenced = False
    for line in [*lines, ""]:
        is_fence = line.startswith("```")
        if found and not fenced and (not line.strip() or is_fence or found[0].startswith("#")):
            yield found
            found = []
        if fenced or line.strip():
            found.append(line)
        if is_fence:
            fenced = not fenced
            if not fenced:
                yield found
                found = []
    if found:
        yield found


def block(lines: list[str]) -> str:
    """Return one block as HTML."""
    if lines[0].startswith("```"):
        code = "\n".join(line for line in lines[1:] if not line.startswith("```"))
        return f"<pre><code>{html.escape(code)}</code></pre>\n"
    heading = re.match(r"(#{1,6}) +(.*)", lines[0])
    if heading:
        level = len(heading[1])
        return f"<h{level}>{inline(heading[2])}</h{level}>\n"
    if lines[0].startswith(("- ", "* ")):
        items = re.split(r"\n[-*] ", "\n" + "\n".join(lines))[1:]
        return "<ul>\n" + "".join(f"<li>{inline(item)}</li>\n" for item in items) + "</ul>\n"
    return f"<p>{inline(chr(10).join(lines))}</p>\n"


def inline(text: str) -> str:
    """Return a line as HTML: code, links, bold and italic."""
    text = html.escape(text)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\[([^]]+)\]\(([^)\s]+)\)", r'<a href="\2">\1</a>', text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"(?<!\w)[*_]([^*_]+)[*_](?!\w)", r"<em>\1</em>", text)


def heading(body: str) -> str | None:
    """Return what the first heading of an HTML text says, if there is one."""
    found = re.search(r"<h1>(.*?)</h1>", body)
    return found[1] if found else None
