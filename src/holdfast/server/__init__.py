"""The HTTP server: a REST API for programs, and what people and monitors look at.

`holdfast server` runs it. `Server` is an ASGI app, to be mounted in another one.
"""

from holdfast.server.access import Level, Principal
from holdfast.server.server import Server

__all__ = ["Level", "Principal", "Server"]
