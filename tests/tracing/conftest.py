"""A collector in its own process, and workers that send their spans to it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cli.processes import until

Span = dict[str, Any]


class Collector:
    """What has been received. Programs send their spans here if they have its `env`."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.env = {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def spans(self, **wanted: object) -> list[Span]:
        """Return the spans with these fields or attributes, `.` in their names written as `_`."""
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            found: list[Span] = json.load(answer)
        return [span for span in found if _fits(span, wanted)]

    def wait(self, enough: Callable[[list[Span]], bool], **wanted: object) -> list[Span]:
        """Wait until the spans with these fields are enough, and return them."""

        def look() -> list[Span] | None:
            spans = self.spans(**wanted)
            return spans if enough(spans) else None

        return until(look, f"spans with {wanted}")

    def trace_of(self, run_id: object) -> list[Span]:
        """Wait until a run has its own span, and return all spans of its trace."""
        found = self.wait(bool, name="workflow.run", run_id=str(run_id))
        return self.spans(trace=found[0]["trace"])


def _fits(span: Span, wanted: dict[str, object]) -> bool:
    fields = {name.replace(".", "_"): value for name, value in span["attributes"].items()} | span
    return all(fields.get(name) == value for name, value in wanted.items())


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """The collector of this test process."""
    program = [sys.executable, "-m", "tests.tracing.collector"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield Collector(int(process.stdout.readline()))
        process.communicate(timeout=30)
