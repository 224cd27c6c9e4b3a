"""Topics: events that are published, and who is subscribed to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias
from uuid import UUID

from holdfast.types.base import Value
from holdfast.types.schedules import PausedBy, RunTarget

SubscriptionKind: TypeAlias = Literal["workflow", "queue", "url", "run"]
EventTarget: TypeAlias = RunTarget  # what an event starts; its payload is the input


class NewEvent(Value, frozen=True, kw_only=True):
    """An event to publish. `payload` is JSON text. With an id, it is published once."""

    topic: str
    payload: str = "null"
    event_id: str | None = None


class Published(Value, frozen=True, kw_only=True):
    """What an event has reached: the number of targets of each kind.

    `is_new` is False if the event, by its id, had been published before: then nothing was done.
    `refused` is the number of starts that a rule of their workflow refused.
    """

    event_id: str
    is_new: bool = True
    workflows: int = 0
    runs: int = 0
    queues: int = 0
    urls: int = 0
    refused: int = 0


class NewSubscription(Value, frozen=True, kw_only=True):
    """A subscription to make: events of topics that fit `pattern`, that contain `match`.

    `match` is JSON text; None for any payload.
    """

    pattern: str
    target: EventTarget
    match: str | None = None


class SubscriptionRecord(Value, frozen=True, kw_only=True):
    """A subscription in the database.

    `target` is what an event starts; None for the subscription of a run, which `run_id` names.
    `app` is set if the code of an app declares it; it is paused by `code` if that no longer does.
    """

    subscription_id: int
    pattern: str
    match: str | None
    kind: SubscriptionKind
    target: EventTarget | None
    run_id: UUID | None
    app: str | None
    paused_at: int | None
    paused_by: PausedBy | None
    created_at: int


class DeclaredSubscriptions(Value, frozen=True):
    """What a declaration has changed: patterns that were added, paused and resumed."""

    added: Sequence[str] = ()
    paused: Sequence[str] = ()
    resumed: Sequence[str] = ()
