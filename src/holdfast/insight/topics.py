"""What is known of deliveries of events to URLs, as a finding of the doctor."""

from __future__ import annotations

from holdfast.insight.findings import Finding
from holdfast.store.port import Store

_SHOWN = 100


async def check_deliveries(store: Store) -> Finding:
    """Check that each event that was sent to a URL has come there, or still may."""
    dead = await store.list_deliveries(dead=True, limit=_SHOWN + 1)
    if not dead:
        return Finding("deliveries", "ok", "no delivery of an event to a URL has failed for good")
    count = "more than one hundred" if len(dead) > _SHOWN else str(len(dead))
    first = dead[0]
    return Finding(
        "deliveries",
        "warn",
        f"{count} of the events for URLs did not come there; the oldest: event {first.event_id} of "
        f"topic {first.topic} to subscription {first.subscription_id}: {first.error}",
        "let the target answer, then redrive the deliveries, or discard them",
    )
