"""The browser of the tests: the system's Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

# The shell has the same engine, without what only a window needs: half of the processor time.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, PROGRAMS)), None)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="there is no Chromium: `make test` installs it as root, or apt-get install chromium",
)


@contextmanager
def opened_chromium() -> Iterator[Browser]:
    """Open the browser, without a window."""
    assert CHROMIUM is not None, "there is no Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()
