"""Charts of what became of runs: how many began, ended and failed a minute, how long they took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from holdfast.insight.stats import Stats, StatsPoint, WorkflowStats, read_workflow_stats
from holdfast.insight.wording import length
from holdfast.moments import to_micros
from holdfast.server.pages.view import View
from holdfast.server.problems import Problem
from holdfast.server.site import Site

SPANS: Final = {"1h": 3600.0, "24h": 86_400.0, "7d": 604_800.0}
WIDTH, HEIGHT = 600, 120  # of a drawing, in its own units

_FRESH_SECONDS: Final = {"1h": 2.0, "24h": 30.0, "7d": 120.0}  # for how long an answer is shown


class Bar(msgspec.Struct, frozen=True):
    """One part of the time: where it is, how high, how much of it failed; `text` says it."""

    x: float
    width: float
    ended: float
    failed: float
    text: str


class Charts(msgspec.Struct, frozen=True, kw_only=True):
    """What a page draws of a span of time. Lines are the `points` of SVG polylines.

    `top_rate` and `top_length` say what the upper edges stand for, `text` all of it in words.
    """

    span: str
    since: int
    until: int
    stats: WorkflowStats
    bars: list[Bar]
    begun: list[str]
    p50: list[str]
    p95: list[str]
    top_rate: str
    top_length: str
    text: str


class _Reader:
    """Reads statistics for all who look at a server's pages: a long span is read seldom."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._read: dict[tuple[str, str | None], tuple[int, Stats]] = {}

    async def read(self, span: str, name: str | None) -> Stats:
        now = await self._site.store.now()
        at, stats = self._read.get((span, name), (0, None))
        if stats is None or not 0 <= now - at < _FRESH_SECONDS[span] * 1e6:
            names = None if name is None else [name]
            stats = await read_workflow_stats(
                self._site.store, since_seconds=SPANS[span], names=names
            )
            old = [key for key, (then, _) in self._read.items() if abs(now - then) > 300e6]
            for key in old:
                del self._read[key]
            self._read[span, name] = (now, stats)
        return stats


_of_sites: WeakKeyDictionary[Site, _Reader] = WeakKeyDictionary()


async def read_stats(view: View, span: str = "1h", name: str | None = None) -> Stats:
    """Return the statistics of a span, some seconds old: of one workflow, or of all."""
    reader = _of_sites.get(view.site)
    if reader is None:
        reader = _of_sites[view.site] = _Reader(view.site)
    return await reader.read(span, name)


async def read_charts(view: View, name: str | None = None) -> Charts:
    """Return the charts of the span that a page's URL names. Raises Problem 400."""
    span = view.param("span", "1h")
    if span not in SPANS:
        raise Problem(400, "bad-parameter", f"span is one of {', '.join(SPANS)}")
    stats = await read_stats(view, span, name)
    return draw(stats.total, span, to_micros(stats.since) + round(stats.seconds * 1e6))


def draw(stats: WorkflowStats, span: str, until: int) -> Charts:
    """Return the charts of statistics that reach until a moment."""
    points = stats.series
    at = [to_micros(each.at) for each in points]
    minutes = (at[1] - at[0]) / 60e6 if len(at) > 1 else 1.0
    most = max(max(each.begun, each.ended) for each in points) or 1
    longest = max((each.p95 for each in points if each.p95), default=0.0)
    return Charts(
        span=span,
        since=at[0],
        until=until,
        stats=stats,
        bars=[_bar(each, place, len(points), most) for place, each in enumerate(points)],
        begun=_lines([each.begun / most for each in points]) if stats.begun else [],
        p50=_lines([each.p50 and each.p50 / longest for each in points]),
        p95=_lines([each.p95 and each.p95 / longest for each in points]),
        top_rate=f"{most / minutes:,.3g}/min",
        top_length="≈ " + _length(longest) if longest else "",
        text=_text(stats, longest),
    )


def _bar(point: StatsPoint, place: int, parts: int, most: int) -> Bar:
    width = WIDTH / parts
    text = f"{point.begun:,} began, {point.ended:,} ended, {point.failed:,} failed"
    if point.p50 is not None and point.p95 is not None:
        text += f"; p50 ≈ {_length(point.p50)}, p95 ≈ {_length(point.p95)}"
    ended, failed = (round(HEIGHT * count / most, 1) for count in (point.ended, point.failed))
    return Bar(round(place * width, 1), round(width * 0.84, 1), ended, failed, text)


def _lines(shares: Sequence[float | None]) -> list[str]:
    """Return lines through shares of the height; where there is none, a line ends."""
    step = WIDTH / len(shares)
    places = [
        (share is not None, f"{(place + 0.42) * step:.1f},{HEIGHT * (1 - (share or 0)):.1f}")
        for place, share in enumerate(shares)
    ]
    parts = [[text for _, text in part] for known, part in groupby(places, _known) if known]
    return [_joined(part, step) for part in parts]


def _known(place: tuple[bool, str]) -> bool:
    return place[0]


def _joined(part: Sequence[str], step: float) -> str:
    if len(part) > 1:
        return " ".join(part)
    x, _, y = part[0].partition(",")  # a lone point: a dash as wide as a bar
    left, right = float(x) - 0.42 * step, float(x) + 0.42 * step
    return f"{left:.1f},{y} {right:.1f},{y}"


def _text(stats: WorkflowStats, longest: float) -> str:
    ended = sum(stats.ended.values())
    words = [f"{stats.begun:,} runs began, {ended:,} ended, {stats.failed_percent} % failed"]
    words += _percentiles(stats)
    if longest:
        words.append(f"p95 of a part of the time was at most about {_length(longest)}")
    return "; ".join(words)


def _percentiles(stats: WorkflowStats) -> Iterable[str]:
    for name, value in (("p50", stats.p50), ("p95", stats.p95)):
        if value is not None:
            yield f"{name} about {_length(value)}"


def _length(seconds: float) -> str:
    return length(round(seconds * 1e6))
