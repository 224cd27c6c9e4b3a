"""What a check of a database found."""

from __future__ import annotations

from typing import Literal, TypeAlias

from holdfast.insight.actions import Action
from holdfast.types import Value

Level: TypeAlias = Literal["ok", "warn", "fail"]


class Finding(Value, frozen=True):
    """What a check found, and what to do about it: an action, a sentence, or both.

    Both are empty if all is well.
    """

    check: str
    level: Level
    message: str
    remedy: str = ""
    action: Action | None = None
