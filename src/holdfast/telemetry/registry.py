"""Metrics in a registry of prometheus-client, for programs that show metrics of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.telemetry.tallies import Family


def register(families: Callable[[], Iterable[Family]], registry: Any = None) -> Callable[[], None]:
    """Show metrics in a registry of prometheus-client, by default in its global one.

    `families` is the method of that name of a `WorkerMetrics`. Return a function that takes them
    out again. Raises ConfigurationError if prometheus-client is not installed.

    ```python
    metrics = WorkerMetrics()
    worker = Worker(app, store, observers=[metrics])
    metrics.watch(worker)
    register(metrics.families)
    ```
    """
    try:
        client: Any = import_module("prometheus_client")
    except ImportError:
        raise ConfigurationError(
            "a registry needs the package prometheus-client: pip install 'holdfast[metrics]'"
        ) from None
    shown = client.REGISTRY if registry is None else registry
    collector = _Collector(families, client.Metric)
    shown.register(collector)

    def unregister() -> None:
        shown.unregister(collector)

    return unregister


class _Collector:
    """What prometheus-client asks at each scrape."""

    def __init__(self, families: Callable[[], Iterable[Family]], metric: Any) -> None:
        self._families, self._metric = families, metric

    def describe(self) -> Iterator[Any]:
        """Return the metrics without lines: only their names are looked at."""
        return map(self._converted, self._families())

    def collect(self) -> Iterator[Any]:
        """Return the metrics as they are now."""
        return map(self._converted, self._families())

    def _converted(self, family: Family) -> Any:
        name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
        metric = self._metric(name, family.help, family.kind)
        suffix = "_total" if family.kind == "counter" else ""
        for each in family.samples:
            metric.add_sample(name + suffix + each.suffix, dict(each.labels), each.value)
        return metric
