"""The client: starting runs, talking to them, and looking at them."""

from holdfast.client.client import Client
from holdfast.client.handle import RunHandle
from holdfast.client.runs import Run, RunPage, RunWait

__all__ = ["Client", "Run", "RunHandle", "RunPage", "RunWait"]
