"""Metrics as Prometheus reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.request import Request, urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.cli.processes import Process, until

B11 = {
    "workflow_runs_started_total",
    "workflow_runs_completed_total",
    "workflow_runs_in_flight",
    "workflow_run_duration_seconds",
    "workflow_step_duration_seconds",
    "workflow_step_retries_total",
    "workflow_signals_total",
    "workflow_retention_swept_total",
}


class Scrape:
    """What one scrape brought."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in self.families for sample in family.samples]

    @property
    def names(self) -> set[str]:
        """The names of the metrics, those of counters with their ending."""
        return {
            family.name + ("_total" if family.type == "counter" else "") for family in self.families
        }

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels."""
        return sum(
            each.value
            for each in self.samples
            if each.name == name and labels.items() <= each.labels.items()
        )

    def label_sets(self, name: str) -> list[Mapping[str, str]]:
        return [each.labels for each in self.samples if each.name == name]


def scrape(url: str, headers: Mapping[str, str] | None = None) -> Scrape:
    with urlopen(Request(url, headers=dict(headers or {})), timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return Scrape(answer.read().decode())


def shown_at(process: Process, times: int = 1) -> list[str]:
    """The addresses at which the workers of a process show their metrics."""
    process.await_text("metrics of worker", times)
    pattern = r"metrics of worker .*?: (http://\S+/metrics)"

    def look() -> list[str] | None:
        found = re.findall(pattern, process.text())
        return found if len(found) >= times else None

    return until(look)
