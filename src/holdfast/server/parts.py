"""What the server serves besides the API: one line a part.

A part is a function that returns the routes that it adds. Paths are below the place where the
server is mounted; the guard stands before them, but each part says itself who may see it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from starlette.routing import BaseRoute

from holdfast.server import description, health, metrics, pages
from holdfast.server.site import Site

Part: TypeAlias = Callable[[Site], Sequence[BaseRoute]]

PARTS: Final[tuple[Part, ...]] = (
    health.routes,
    metrics.routes,
    description.routes,
    pages.routes,
)
