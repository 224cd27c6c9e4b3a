"""The client: starting runs, talking to them, and looking at them."""

from holdfast.client.client import Client
from holdfast.client.handle import RunHandle

__all__ = ["Client", "RunHandle"]
