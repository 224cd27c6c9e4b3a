"""The site: it builds without a warning, and is complete without other hosts."""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browsers import needs_chromium, opened_chromium
from tests.docs.blocks import ROOT

# Of each kind a short page: axe looks at every word of code.
_LOOKED_AT = ["index.html", "howto/outbox.html", "explanation/comparison.html"]
_LOOKED_AT += ["reference/api/client.limits.html", "reference/cli/start.html"]


def build(configuration: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run MkDocs as `make docs` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "-f", str(configuration), "-d", str(folder)]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture(scope="session")
def site(server_homes: Path) -> Path:
    """The site, built by the first test process that needs it."""
    folder = server_homes / "site"
    with (server_homes / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            done = build(ROOT / "mkdocs.yml", folder)
            assert done.returncode == 0, done.stderr
    return folder


def pages(site: Path, suffix: str) -> list[str]:
    """Return the paths of the site's pages of one kind."""
    found = {path.relative_to(site).as_posix() for path in site.rglob(f"*{suffix}")}
    return sorted(found - {"404.html"})


def test_a_dead_link_and_a_page_without_a_place_fail_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# One\n\n[a](two.md) [b](#three) [c](/d.md)\n")
    (tmp_path / "docs/four.md").write_text("# Four\n")
    configuration = {"docs_dir": "docs", "hooks": [], "nav": ["index.md"], "INHERIT": "base.yml"}
    (tmp_path / "base.yml").write_text((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    (tmp_path / "mkdocs.yml").write_text(json.dumps(configuration))
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    assert all(told in done.stderr for told in ("two.md", "#three", "/d.md", "four.md"))
    assert "Aborted with 4 warnings" in done.stdout + done.stderr


def test_each_page_is_there_as_markdown(site: Path) -> None:
    copies = set(pages(site, ".md"))
    for page in pages(site, ".html"):
        names = {page.replace(".html", ".md"), page.replace("index.html", "README.md")}
        assert names & copies, page


def test_readers_get_no_hidden_block(site: Path) -> None:
    shown = [*pages(site, ".md"), "llms-full.txt"]
    assert [page for page in shown if re.search("^<!--", (site / page).read_text(), re.M)] == []
    hidden = re.compile(r"<!-- (python|console|sql)\b|&lt;!-- ?\w*\n")
    assert [page for page in pages(site, ".html") if hidden.search((site / page).read_text())] == []


def test_the_copies_link_what_is_there(site: Path) -> None:
    for copy in [*pages(site, ".md"), "llms.txt", "llms-full.txt"]:
        text = re.sub(r"^```.*?^```|`[^`]+`", "", (site / copy).read_text(), flags=re.M | re.S)
        links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
        assert [each for each in links if not ((site / copy).parent / each).exists()] == [], copy


def test_language_models_get_all_pages(site: Path) -> None:
    listed = re.findall(r"^- \[.+\]\((.+)\): .+$", (site / "llms.txt").read_text(), re.M)
    whole = (site / "llms-full.txt").read_text()
    assert sorted(listed) == pages(site, ".md")
    assert re.findall(r"^Page: (.+)$", whole, re.M) == listed
    assert (site / "llms.txt").read_text().startswith("# holdfast\n\n> Durable workflows")


def test_the_list_for_language_models_has_whole_sentences_in_one_order(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    sections = re.findall("^## .+$", text, re.M)
    assert sorted(set(sections)) == sorted(sections)
    described = dict(re.findall(r"^- \[.+\]\((.+)\): (.+)$", text, re.M))
    assert described["reference/cli/alerts.md"] == (
        "List alerts: which are active, and what was seen."
    )
    assert [page for page, said in described.items() if said.count("(") != said.count(")")] == []


def test_nothing_comes_from_other_hosts(site: Path) -> None:
    fetched = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*src=\"?https?:|<link\b[^>]*href=\"?https?:"
    )
    assert [
        page for page in pages(site, ".html") if fetched.search((site / page).read_text())
    ] == []


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that left before its answer was complete."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = _Server(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with opened_chromium() as browser:
        yield browser


def width(page: Page) -> int:
    found: int = page.evaluate("document.documentElement.scrollWidth")
    return found


@needs_chromium
def test_no_page_scrolls_sideways_on_a_phone(site: Path, chromium: Browser) -> None:
    """Without its scripts, which only take time: the next test has them.

    All pages are shown in the place of the first, which has loaded the styles that they share.
    """
    page = chromium.new_page(viewport={"width": 360, "height": 800}, java_script_enabled=False)
    page.goto((site / "index.html").as_uri())
    wide = []
    for path in pages(site, ".html"):
        base = f'<head><base href="{(site / path).as_uri()}">'
        page.set_content((site / path).read_text().replace("<head>", base, 1))
        if width(page) > 360:
            wide.append(path)
    page.close()
    assert wide == []


def violations(page: Page, rules: Any) -> list[Any]:
    """Return what axe finds on a page, each with the elements."""
    only: dict[str, Any] = {"resultTypes": ["violations"], **rules}  # the rest is long, and unread
    found = Axe().run(page, options=only).response["violations"]
    return [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found]


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_readable_for_all(address: str, chromium: Browser, scheme: Any) -> None:
    """Axe finds nothing, the browser has no complaint, and asks no other host."""
    context = chromium.new_context(
        color_scheme=scheme, viewport={"width": 1280, "height": 800}, reduced_motion="reduce"
    )
    complaints, hosts = list[str](), set[str]()
    page = context.new_page()
    page.on("console", lambda said: complaints.append(f"{page.url}: {said.text}"))
    page.on("request", lambda asked: hosts.add(urljoin(asked.url, "/")))
    # The theme has a landmark for each list of pages, and for each button that copies.
    light = {"rules": {"landmark-unique": {"enabled": False}}}
    rules = light if scheme == "light" else {"runOnly": ["color-contrast"]}
    for place, path in enumerate(_LOOKED_AT if scheme == "light" else _LOOKED_AT[:2]):
        page.goto(address + path)
        assert violations(page, rules) == [], path
        page.set_viewport_size({"width": 360, "height": 800})
        assert width(page) <= 360, path
        if place == 0:  # the menu, the table of contents and the code of a phone
            assert violations(page, rules) == [], f"{path} on a phone"
        page.set_viewport_size({"width": 1280, "height": 800})
    context.close()
    assert complaints == []
    assert hosts == {address}


@needs_chromium
def test_the_search_finds_a_page(address: str, chromium: Browser) -> None:
    page = chromium.new_page(viewport={"width": 1280, "height": 800})
    page.goto(address)
    page.get_by_role("textbox", name="Search").fill("acknowledge message")
    expect(page.locator(".md-search-result__link[href*='howto/queues.html']").first).to_be_visible(
        timeout=60_000
    )
    page.close()
