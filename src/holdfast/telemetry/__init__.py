"""Metrics: counted in the worker and in the server, and shown to Prometheus.

Nothing below the worker, the server and the command line imports this package.
"""

from holdfast.telemetry.registry import register
from holdfast.telemetry.worker import WorkerMetrics

__all__ = ["WorkerMetrics", "register"]
