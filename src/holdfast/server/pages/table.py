"""The table of pages: each has the level that it needs."""

from __future__ import annotations

from typing import Final

from holdfast.server.pages import actions, overview, run, runs
from holdfast.server.pages.view import Row

TABLE: Final[tuple[Row, ...]] = (
    Row("GET", "/", "read", overview.overview),
    Row("GET", "/runs", "read", runs.list_page),
    Row("GET", "/runs/{run}", "read", run.run_page),
    Row("GET", "/runs/{run}/timeline", "read", run.timeline_window),
    Row("GET", "/runs/{run}/download/{what}", "read", run.download),
    Row("GET", "/runs/{run}/fork", "write", actions.fork_page),
    Row("POST", "/runs/{run}/fork", "write", actions.fork),
    *(
        Row("POST", f"/runs/{{run}}/do/{name}", level, do)
        for name, (level, do) in actions.DO.items()
    ),
)
