"""Charts of runs, and of how much waits: what became of runs, how long they took, backlog, load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import msgspec

from holdfast.insight.load import COUNTED, Load, LoadPoint, QueueBacklog, read_load
from holdfast.insight.stats import Stats, StatsPoint, WorkflowStats, read_workflow_stats
from holdfast.insight.wording import length_of, several
from holdfast.server.pages.view import View
from holdfast.server.problems import Problem
from holdfast.server.site import Site
from holdfast.values.moments import to_micros

SPANS: Final = {"1h": 3600.0, "24h": 86_400.0, "7d": 604_800.0}
WIDTH, HEIGHT = 600, 120  # of a drawing, in its own units

_QUEUES: Final = 4  # that have a line of their own
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


class Line(msgspec.Struct, frozen=True):
    """A line of a chart: `color` is the class of its colour, `parts` are polylines."""

    color: str
    words: str
    parts: list[str]


class LoadCharts(msgspec.Struct, frozen=True, kw_only=True):
    """What a page draws of backlog and load: lines by queue, and the places that are taken.

    `is_known` is False if no worker has looked yet; `hits` have the words of each part.
    """

    since: int
    until: int
    load: Load
    queues: list[Line]
    places: list[Line]
    top_due: str
    top_places: str
    hits: list[Bar]
    text: str
    is_known: bool


class _Reader:
    """Reads statistics for all who look at a server's pages: a long span is read seldom."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._read: dict[tuple[str, str | None], tuple[int, Stats, Load]] = {}

    async def read(self, span: str, name: str | None) -> tuple[Stats, Load]:
        store = self._site.store
        now = await store.now()
        kept = self._read.get((span, name))
        if kept is None or not 0 <= now - kept[0] < _FRESH_SECONDS[span] * 1e6:
            names = None if name is None else [name]
            reads, seconds = store.reads, SPANS[span]
            stats = await read_workflow_stats(reads, since_seconds=seconds, names=names)
            load = await read_load(reads, since_seconds=seconds, name=name)
            old = [key for key, (then, *_) in self._read.items() if abs(now - then) > 300e6]
            for key in old:
                del self._read[key]
            kept = self._read[span, name] = (now, stats, load)
        return kept[1:]


async def read_stats(view: View, span: str = "1h", name: str | None = None) -> Stats:
    """Return the statistics of a span, some seconds old: of one workflow, or of all."""
    return (await _reader(view).read(span, name))[0]


def _reader(view: View) -> _Reader:
    return view.site.kept(_Reader)


async def read_charts(view: View, name: str | None = None) -> tuple[Charts, LoadCharts]:
    """Return the charts of the span that a page's URL names. Raises Problem 400."""
    span = view.param("span", "1h")
    if span not in SPANS:
        raise Problem(400, "bad-parameter", f"span is one of {', '.join(SPANS)}")
    stats, load = await _reader(view).read(span, name)
    until = to_micros(stats.since) + round(stats.seconds * 1e6)
    return draw(stats.total, span, until), draw_load(load, until)


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
        top_length="≈ " + length_of(longest) if longest else "",
        text=_text(stats, longest),
    )


def draw_load(load: Load, until: int) -> LoadCharts:
    """Return the charts of backlog and load that reach until a moment."""
    points, first = load.points, load.queues[:_QUEUES]
    most = max((each.due or 0 for each in points), default=0) if len(first) > 1 else 0
    most = max(most, *(each.most for each in first), 1) if first else 1
    top = max((max(each.busy or 0, each.places or 0) for each in points), default=0) or 1
    lines = [
        Line(f"q{place}", each.queue, _lines([_share(due, most) for due in each.due]))
        for place, each in enumerate(first)
    ]
    if len(load.queues) > 1:
        lines.insert(0, Line("all", "all queues", _lines([_share(p.due, most) for p in points])))
    return LoadCharts(
        since=to_micros(points[0].at),
        until=until,
        load=load,
        queues=lines,
        places=[
            Line("places", "places", _lines([_share(each.places, top) for each in points])),
            Line("busy", "taken", _lines([_share(each.busy, top) for each in points])),
        ],
        top_due=_tasks(most) if any(each.due for each in points) else "",
        top_places=f"{top:,.4g} places",
        hits=[_hit(each, place, points, first) for place, each in enumerate(points)],
        text=_load_text(load),
        is_known=any(each.due is not None for each in points),
    )


def _share(value: float | None, top: float) -> float | None:
    return None if value is None else value / top


def _tasks(count: int) -> str:
    return f"{count:,} or more tasks" if count >= COUNTED else several(count, "task")


def _hit(point: LoadPoint, place: int, points: list[LoadPoint], first: list[QueueBacklog]) -> Bar:
    width = WIDTH / len(points)
    text = "no worker looked"
    if point.due is not None:
        text = f"{_tasks(point.due)} waited; {point.busy:,.4g} of {point.places:,.4g} places taken"
        for each in first if len(first) > 1 else []:
            if each.due[place]:
                text += f"; queue {each.queue}: {each.due[place]:,}"
    return Bar(round(place * width, 1), round(width, 1), 0, 0, text)


def _load_text(load: Load) -> str:
    known = [each for each in load.points if each.due is not None]
    if not known:
        return "no worker has looked yet"
    most = max(each.due or 0 for each in known)
    busy = sum(each.busy or 0 for each in known) / len(known)
    places = sum(each.places or 0 for each in known) / len(known)
    return (
        f"at most {_tasks(most)} waited for a worker; on average {busy:,.3g} of {places:,.3g} "
        "places were taken"
    )


def _bar(point: StatsPoint, place: int, parts: int, most: int) -> Bar:
    width = WIDTH / parts
    text = f"{point.begun:,} began, {point.ended:,} ended, {point.failed:,} failed"
    if point.p50 is not None and point.p95 is not None:
        text += f"; p50 ≈ {length_of(point.p50)}, p95 ≈ {length_of(point.p95)}"
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
        words.append(f"p95 of a part of the time was at most about {length_of(longest)}")
    return "; ".join(words)


def _percentiles(stats: WorkflowStats) -> Iterable[str]:
    for name, value in (("p50", stats.p50), ("p95", stats.p95)):
        if value is not None:
            yield f"{name} about {length_of(value)}"
