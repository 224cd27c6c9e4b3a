"""Counters, histograms, their limits, and the text that Prometheus reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from holdfast.errors import ConfigurationError
from holdfast.telemetry.listener import address_of, parse_address
from holdfast.telemetry.registry import register
from holdfast.telemetry.tallies import Counter, Histogram, gauge
from holdfast.telemetry.text import render
from holdfast.telemetry.worker import WorkerMetrics
from tests.telemetry.scrapes import B11, Scrape


def test_case_33_steps_that_user_data_names_keep_1000_label_sets() -> None:
    """Edge case 33. A step named by user data: label sets stay <= 1,000, and nothing is lost."""
    steps = Histogram("seconds", "Time.", ("workflow", "step"), (1, 2))
    retries = Counter("retries_total", "Retries.", ("workflow", "step"))
    for workflow in range(50):
        for number in range(100):
            labels = (f"w{workflow}", f"customer {number}")
            for _ in range(2):
                steps.observe(labels, 1.5)
                retries.add(labels)
    seen = Scrape(render([steps.family(), retries.family()]).decode())
    for name in ("seconds_count", "retries_total"):
        assert 900 <= len(seen.label_sets(name)) <= 1000
        assert seen.value(name) == 10_000
        assert seen.value(name, workflow="w49", step="other") == 200


def test_labels_of_any_text_are_read_back() -> None:
    counter = Counter("signals_total", 'Of "any"\n\\ name.', ("event",))
    names = ['a "b"', "line\nbreak", "back\\slash", "\\n", "käse ☕", "{}=,"]
    for name in names:
        counter.add((name,))
    seen = Scrape(render([counter.family()]).decode())
    assert [each["event"] for each in seen.label_sets("signals_total")] == names


def test_buckets_are_cumulative_and_include_their_bound() -> None:
    seconds = Histogram("t_seconds", "Time.", (), (1_000_000, 2_500_000), unit=1_000_000)
    for micros in (1, 1_000_000, 1_000_001, 2_500_000, 9_000_000):
        seconds.observe((), micros)
    seen = Scrape(render([seconds.family()]).decode())
    buckets = {each.labels["le"]: each.value for each in seen.samples if "le" in each.labels}
    assert buckets == {"1.0": 2, "2.5": 4, "+Inf": 5}
    assert seen.value("t_seconds_sum") == pytest.approx(13.500002)


def test_a_registry_of_prometheus_client_shows_the_same() -> None:
    metrics = WorkerMetrics()
    metrics.run_ended("bread", "completed", 0, 2_000_000)
    registry = CollectorRegistry()
    unregister = register(metrics.families, registry)
    shown = Scrape(generate_latest(registry).decode())
    own = Scrape(render(metrics.families()).decode())
    assert {(s.name, *sorted(s.labels.items()), s.value) for s in shown.samples} == {
        (s.name, *sorted(s.labels.items()), s.value) for s in own.samples
    }
    unregister()
    assert generate_latest(registry) == b""


def test_without_prometheus_client_a_registry_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"holdfast\[metrics\]"):
        register(list)


@pytest.mark.parametrize("text", ["", ":", "host:", ":9000", "host", "h:70000", "h:-1", "h:x"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        parse_address(text)


def test_the_last_process_needs_a_port_too() -> None:
    assert address_of("[::1]:65534", 1) == "[::1]:65535"
    with pytest.raises(ConfigurationError, match="65535"):
        address_of("[::1]:65534", 2)


def test_a_gauge_is_what_was_read_now() -> None:
    family = gauge("due", "Due tasks.", {("gpu",): 3, ("default",): 0}, "queue")
    assert Scrape(render([family]).decode()).value("due", queue="gpu") == 3


def test_the_page_about_metrics_names_those_that_there_are() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/howto/metrics.md").read_text()
    code = "".join(each.read_text() for each in (root / "src/holdfast/telemetry").glob("*.py"))
    shown = set(re.findall(r'"((?:workflow|holdfast)_[a-z_]+)"', code))
    named = set(re.findall(r"\b((?:workflow|holdfast)_[a-z_]+)\b", page))
    assert named == shown
    assert named >= B11
