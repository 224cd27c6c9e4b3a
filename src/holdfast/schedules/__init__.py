"""When schedules fire, as values: cron, intervals, time zones. Pure: no store, no I/O."""

from holdfast.schedules.parsing import parse_moment, parse_when
from holdfast.schedules.ticks import last_ticks, next_after, next_ticks, ticks_between

__all__ = ["last_ticks", "next_after", "next_ticks", "parse_moment", "parse_when", "ticks_between"]
