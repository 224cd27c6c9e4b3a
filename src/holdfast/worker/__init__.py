"""The worker: what claims runs and activities, and drives them."""

from holdfast.worker.options import WorkerOptions
from holdfast.worker.worker import Worker

__all__ = ["Worker", "WorkerOptions"]
