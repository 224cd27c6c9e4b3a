"""Statistics of workflows as small drawings: a bar for each minute, its failures at the bottom."""

from __future__ import annotations

import msgspec

from holdfast.insight.stats import Stats, StatsPoint, WorkflowStats

WIDTH, HEIGHT = 120, 20  # of a drawing, in its own units


class Column(msgspec.Struct, frozen=True):
    """What one bar is drawn of: where it is, how wide and high, and the height of its failures."""

    x: float
    width: float
    height: float
    failed: float


class Spark(msgspec.Struct, frozen=True, kw_only=True):
    """What a page shows of a workflow's last hour. `text` says in words what the bars show."""

    stats: WorkflowStats
    columns: list[Column]
    text: str


def make_sparks(stats: Stats) -> dict[str, Spark]:
    """Return the drawings of statistics of the last hour, by workflow."""
    return {each.name: spark(each) for each in stats.workflows}


def spark(stats: WorkflowStats) -> Spark:
    """Return the drawing of a workflow's statistics."""
    most = max((point.ended for point in stats.series), default=0) or 1
    width = WIDTH / max(len(stats.series), 1)
    columns = [
        _column(point, place * width, width, most)
        for place, point in enumerate(stats.series)
        if point.ended
    ]
    ended = sum(stats.ended.values())
    text = f"{ended:,} ended in the last hour, at most {most:,} in a minute"
    return Spark(
        stats=stats, columns=columns, text=text if ended else "none ended in the last hour"
    )


def _column(point: StatsPoint, x: float, width: float, most: int) -> Column:
    height = max(HEIGHT * point.ended / most, 1.0)
    failed = height * point.failed / point.ended
    return Column(round(x, 2), round(width * 0.8, 2), round(height, 2), round(failed, 2))
