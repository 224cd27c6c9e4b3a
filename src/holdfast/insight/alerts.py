"""What alerts say, and which of them are active."""

from __future__ import annotations

from holdfast.insight.findings import Finding
from holdfast.insight.wording import ago, length_of, several
from holdfast.store.port import Store
from holdfast.types import AlertInfo, AlertRule
from holdfast.types.alerts import seen_text

_LATE_SECONDS = 60  # a worker looks each 10 seconds


def rule_text(app: str, rule: AlertRule) -> str:
    """Return when an alert begins: `5 runs of shop/checkout fail in 10 m`."""
    of = rule.subject or f"app {app}"
    count = several(round(rule.threshold), "run")
    reached = length_of(rule.threshold)
    within = "" if rule.within_seconds is None else f" in {length_of(rule.within_seconds)}"
    says = {
        "failed": f"{count} of {of} failed{within}",
        "stuck": f"{count} of {of} stuck",
        "backlog": f"a task of queue {of} waits for {reached}",
        "slow": f"5 of 100 runs of {of} took {reached}{within}",
        "no_worker": f"no live worker serves queue {of}",
    }[rule.kind]
    return f"{says}, for {length_of(rule.lasting_seconds)}" if rule.lasting_seconds else says


def state_text(alert: AlertInfo, now: int) -> str:
    """Return how an alert stands: `active since 5 m: 7 runs of shop/checkout failed in 10 m`."""
    if alert.looked_at is None:
        return "no worker has looked yet"
    rule, since = alert.rule, "" if alert.changed_at is None else ago(alert.changed_at, now)
    seen = "nothing was seen"
    if alert.value is not None:
        seen = seen_text(rule.kind, alert.app, rule.subject, alert.value, rule.within_seconds)
    late = now - alert.looked_at > _LATE_SECONDS * 1_000_000
    looked = f" (looked {ago(alert.looked_at, now)}: does a worker live?)" if late else ""
    state = f"began {since}: " if alert.is_active else f"over {since}; " if since else ""
    return f"{state}{seen}{looked}" + (f"; not published: {alert.error}" if alert.error else "")


async def check_alerts(store: Store) -> Finding:
    """Name the alerts that are active, and those whose events are refused."""
    alerts, now = await store.list_alerts(), await store.now()
    found = [each for each in alerts if each.is_active or each.error]
    if not found:
        return Finding("alerts", "ok", f"{several(len(alerts), 'alert')}; none is active")
    texts = [f"{each.rule.name} ({each.app}): {state_text(each, now)}" for each in found]
    return Finding("alerts", "warn", "; ".join(texts))
