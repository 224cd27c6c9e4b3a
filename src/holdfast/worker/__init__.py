"""The worker: what claims runs and activities, and drives them."""

from holdfast.worker.worker import STEP_THREADS, Worker, WorkerOptions

__all__ = ["STEP_THREADS", "Worker", "WorkerOptions"]
