"""Limits: how many tasks may run at once or begin in a period, and in which order."""

from __future__ import annotations

from typing import Literal, TypeAlias

from holdfast.types.base import Value

LimitScope: TypeAlias = Literal["queue", "workflow", "activity"]
LimitKind: TypeAlias = Literal["concurrency", "rate", "units", "fairness", "ageing"]
Holds: TypeAlias = Literal["turn", "run"]


class LimitRule(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What a limit says about the tasks of a queue, a workflow or an activity.

    `concurrency` and `rate` of a queue also concern the messages of that name's message queue.
    `concurrency`: `most` tasks at once; `holds` says if a task counts while a worker executes it
    (`turn`), or a run from its first claim to its end (`run`). `rate`: `most` tasks begin in each
    `period_seconds`; if `smooth`, at even distances. `units`: what begins in each `period_seconds`
    uses `most` of them; `units` is the path of their number in the input, or `call`: calls of an
    activity say it. `fairness`: the tasks of each key in turn.
    `ageing`: a task counts as one priority more urgent for each `period_seconds` that it waits.
    `key` is the path of a key in the input, such as `input.customer`: then the limit is for each
    value of it. It is empty for all tasks together.
    """

    scope: LimitScope
    name: str
    kind: LimitKind
    most: int | None = None
    period_seconds: float | None = None
    key: str = ""
    holds: Holds | None = None
    smooth: bool | None = None
    units: str | None = None


class LimitInfo(Value, frozen=True, kw_only=True):
    """A limit, and how it is used.

    `is_declared` is True if the code of an app declares it. `held` counts the tasks and messages
    that count for it, `full_keys` the values of its key that allow no more, `waiting` the tasks of
    its queue, workflow or activity that wait for any limit, and the messages that wait for this
    one. Counting ends at 1,000 of each workflow or activity in each queue, and of messages: if
    there are more, `more_wait` is True. `used` is how much of a rate, in tasks, messages or units,
    counts now, for all values of its key; None for other limits.
    """

    rule: LimitRule
    is_declared: bool
    changed_at: int
    held: int
    full_keys: int
    waiting: int
    more_wait: bool
    used: int | None = None


class LimitWait(Value, frozen=True, kw_only=True):
    """A limit that a task of a run waits for.

    `slot` is the value of the limit's key for this task. `held` counts the tasks that count for
    this value, `free` is what it allows now, None for any number, and `next_at` when a rate allows
    more. `ahead` counts the tasks that come first among those with the same keys. `uses` is how
    many units the task uses, None if the limit does not count them.
    """

    task_key: str
    waits_since: int
    ahead: int
    rule: LimitRule
    slot: str
    held: int
    free: int | None
    next_at: int | None
    uses: int | None = None
