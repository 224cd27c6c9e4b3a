"""The client: start runs, send them messages, read and control them."""

from holdfast.client.client import Client
from holdfast.client.handle import RunHandle
from holdfast.client.message import Message
from holdfast.client.messages import Outgoing
from holdfast.client.messaging import Signal
from holdfast.client.run import Run, RunPage, RunWait
from holdfast.client.schedule import ScheduleInfo, Tick

__all__ = [
    "Client",
    "Message",
    "Outgoing",
    "Run",
    "RunHandle",
    "RunPage",
    "RunWait",
    "ScheduleInfo",
    "Signal",
    "Tick",
]
