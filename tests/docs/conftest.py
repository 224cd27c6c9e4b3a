"""The blocks of pages, in the process of a test, use sessions again."""

from __future__ import annotations

from tests.sessions import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
from tests.sessions import runs_share_the_loop as runs_share_the_loop
