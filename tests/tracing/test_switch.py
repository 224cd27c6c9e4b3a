"""When tracing is on, and what it costs a program in which it is off."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.processes import environment
from tests.tracing.test_workers import SHOP

LOADED = """
import asyncio, sys
from holdfast import App, Client
from holdfast.cli.process import worker
from holdfast.store.memory import MemoryStore
from holdfast.tracing import worker_tracer

async def main():
    async with Client(store=MemoryStore(), app=App("shop")):
        assert worker_tracer("shop") is None

asyncio.run(main())
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
WITHOUT = """
import sys
sys.modules["opentelemetry.sdk"] = None  # not installed
from holdfast.cli import main
sys.argv[0] = "holdfast"
main()
"""
OTLP = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


def python(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, env=environment(variables), capture_output=True, text=True, timeout=90, check=False
    )


@pytest.mark.parametrize("variables", [{}, {"HOLDFAST_TRACES": "0"} | OTLP])
def test_opentelemetry_is_not_imported_while_tracing_is_off(variables: dict[str, str]) -> None:
    done = python(LOADED, **variables)
    assert done.stdout.strip() == "[]", done.stderr


def test_traces_without_their_packages_are_an_error_that_names_the_extra(database_url: str) -> None:
    arguments = ["--database", database_url, "worker", SHOP]
    asked = {"HOLDFAST_TRACES": "1", "PYTHONHASHSEED": "0"}
    done = python(WITHOUT, *arguments, **asked)
    assert done.returncode == 2, done.stderr
    assert "holdfast[traces]" in done.stderr
    assert "Traceback" not in done.stderr
    # A variable that others read too only leads to a warning.
    done = python(WITHOUT, "--database", database_url, "start", "nobody/nothing", **OTLP)
    assert "$OTEL_EXPORTER_OTLP_ENDPOINT is set" in done.stderr
    assert "unknown" in done.stderr.lower() or "nobody/nothing" in done.stderr


def test_a_value_that_is_not_known_is_refused(database_url: str) -> None:
    code = "from holdfast.tracing import is_on; is_on()"
    done = python(code, HOLDFAST_TRACES="maybe")
    assert "$HOLDFAST_TRACES is 'maybe': use 1 for traces" in done.stderr
