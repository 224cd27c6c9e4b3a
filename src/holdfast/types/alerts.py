"""Alerts: conditions that are looked at again and again, and told of by events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, TypeAlias

from holdfast.types.base import Value
from holdfast.values.durations import length_of

AlertKind: TypeAlias = Literal["failed", "stuck", "backlog", "slow", "no_worker"]


class AlertRule(Value, frozen=True, kw_only=True):
    """An alert as an app declares it.

    `subject` is what it is about: a workflow or a flow with its app, or a queue; empty for all
    workflows of the app. It begins when the value, see `AlertInfo`, reaches `threshold`; of
    `no_worker`, when it is below. The change has to last `lasting_seconds`, as has the end of it.
    """

    name: str
    kind: AlertKind
    subject: str
    threshold: float
    topic: str
    within_seconds: float | None = None
    lasting_seconds: float = 0.0


class AlertInfo(Value, frozen=True, kw_only=True):
    """An alert, and how things stand.

    `value` is what was seen last: runs that failed or are stuck, seconds that the oldest task has
    waited or that 95 of 100 runs took less than, workers that live. None if nothing was seen.
    `changed_at` is when it last began or was over, `looked_at` when it was last looked at, in
    microseconds since 1970, None for never. `error` says why an event could not be published,
    which is tried again.
    """

    app: str
    rule: AlertRule
    is_active: bool
    value: float | None
    changed_at: int | None
    looked_at: int | None
    error: str | None = None


class AlertEvent(Value, frozen=True, kw_only=True):
    """The payload of the events of an alert: `active` when it begins, not `active` when it is over.

    `value` is what made the difference, see `AlertInfo`; None if the alert is over because no
    code declares it any more. `at` is when the event was published.

    ```python
    @app.workflow
    async def tell(ctx: Context, alert: AlertEvent) -> None:
        await send_mail("ops@example.org", alert.text)

    app.subscribe("ops", tell)
    ```
    """

    alert: str
    app: str
    active: bool
    kind: AlertKind
    subject: str
    value: float | None
    threshold: float
    within_seconds: float | None
    at: datetime

    @property
    def text(self) -> str:
        """The event as a sentence: `checkout fails: 7 runs of shop/checkout failed in 10 m`."""
        seen = "its code is gone"
        if self.value is not None:
            seen = seen_text(self.kind, self.app, self.subject, self.value, self.within_seconds)
        return f"{self.alert}{'' if self.active else ' is over'}: {seen}"


class AlertChange(Value, frozen=True):
    """What became of an alert: it began or was over, or an error kept its event back.

    One that `is_deleted` is not in the code of its app any more.
    """

    app: str
    name: str
    is_active: bool
    value: float | None = None
    error: str | None = None
    is_deleted: bool = False


class DeclaredAlerts(Value, frozen=True):
    """What a declaration has changed: names of alerts that were added, and changed."""

    added: Sequence[str] = ()
    changed: Sequence[str] = ()


def seen_text(
    kind: AlertKind, app: str, subject: str, value: float, within_seconds: float | None
) -> str:
    """Return what was seen, as a sentence."""
    of = subject or f"app {app}"
    noun = "run" if value == 1 else "runs"
    match kind:
        case "failed":
            return f"{value:g} {noun} of {of} failed in {length_of(within_seconds or 0)}"
        case "stuck":
            return f"{value:g} {noun} of {of} {'is' if value == 1 else 'are'} stuck"
        case "backlog":
            return f"the oldest task of queue {of} has waited for {length_of(value)}"
        case "slow":
            return f"95 of 100 runs of {of} took less than {length_of(value)}"
        case _:
            return f"live workers of queue {of}: {value:g}"
