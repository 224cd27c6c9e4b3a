"""The first page: what needs a person, who works, and what happened last."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.insight.alerts import check_alerts, rule_text, state_text
from holdfast.insight.doctor import check_pauses, check_reads, check_unserved, check_workers
from holdfast.insight.findings import Finding
from holdfast.insight.queues import check_queues
from holdfast.insight.schedules import check_schedules
from holdfast.insight.serving import live_workers
from holdfast.insight.stats import check_failures
from holdfast.insight.topics import check_deliveries
from holdfast.server.pages.charts import SPANS, read_charts, read_stats
from holdfast.server.pages.runs import line
from holdfast.server.pages.sparks import Spark, make_sparks
from holdfast.server.pages.view import Page, View

_FEW: Final = 6


async def overview(view: View) -> Page:
    """Return the first page."""
    now = await view.store.now()
    runs, day = view.reader.runs, datetime.now(UTC) - timedelta(days=1)
    stuck = await runs.list(states="stuck", limit=_FEW)
    failed = await runs.list(states=["failed", "timed_out"], since=day, limit=_FEW)
    newest = await runs.list(limit=10)
    approvals = await view.reader.approvals.list(limit=_FEW)
    workers = await view.store.list_workers()
    checks = (
        check_alerts,
        check_workers,
        check_unserved,
        check_pauses,
        check_schedules,
        check_queues,
        check_deliveries,
        check_failures,
    )
    findings: list[Finding] = [await check(view.store) for check in checks]
    findings += await check_reads(view.store)
    charts, load = await read_charts(view)
    return Page(
        template="overview.html",
        title="Overview",
        place="/",
        parts={"all": "parts/overview.html"},
        values={
            "stuck": [line(each.record, now) for each in stuck.runs],
            "failed": [line(each.record, now) for each in failed.runs],
            "lines": [line(each.record, now) for each in newest.runs],
            "approvals": approvals,
            "alerts": [
                (each, rule_text(each.app, each.rule), state_text(each, now))
                for each in await view.store.list_alerts()
            ],
            "live_workers": live_workers(workers, now),
            "charts": charts,
            "load": load,
            "charts_of": None,
            "spans": SPANS,
            "busiest": _busiest(make_sparks(await read_stats(view))),
            "findings": [each for each in findings if each.level != "ok"],
            "searched": None,
            "kept": {},
        },
    )


def _busiest(sparks: dict[str, Spark]) -> list[Spark]:
    """Return the workflows of which most runs ended lately."""
    ended = [each for each in sparks.values() if each.columns]
    return sorted(ended, key=lambda each: -sum(each.stats.ended.values()))[:_FEW]
