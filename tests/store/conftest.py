"""The tests of a store share an event loop, and so the sessions of their databases."""

from tests.sessions import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
