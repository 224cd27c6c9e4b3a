"""The worker: what claims runs and activities, and drives them."""

from holdfast.worker.options import WorkerOptions
from holdfast.worker.sweep import Sweep, SweepLimits, SweepResult
from holdfast.worker.worker import Worker

__all__ = ["Sweep", "SweepLimits", "SweepResult", "Worker", "WorkerOptions"]
