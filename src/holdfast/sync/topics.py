"""Generated from the asynchronous client by scripts/generate_sync.py."""

from __future__ import annotations

from holdfast.client.topics import Topics
from holdfast.sync.base import SyncGroup, blocking


class SyncTopics(SyncGroup[Topics], of=Topics):
    """Events, and what they reach: workflows that are started, runs that wait."""

    publish = blocking(Topics.publish)
    """Publish an event: all that is subscribed to its topic gets it, in one transaction."""
    subscribe = blocking(Topics.subscribe)
    """Send each event of a topic that fits to a workflow, a queue or a URL; return an id."""
    unsubscribe = blocking(Topics.unsubscribe)
    """Remove a subscription; what it has started stays. False if there is none."""
    list = blocking(Topics.list)
    """Return subscriptions, oldest first: of a kind, else all but those of runs that wait."""
    deliveries = blocking(Topics.deliveries)
    """Return events that are not yet delivered to URLs, oldest first."""
    redrive = blocking(Topics.redrive)
    """Deliver dead deliveries again, these or all; return how many there were."""
    discard = blocking(Topics.discard)
    """Delete dead deliveries, these or all; return how many there were."""
    count = blocking(Topics.count)
    """Return how many subscriptions of each kind have a pattern that a topic fits."""
