"""When schedules fire, as values: cron, intervals, time zones. Pure: no store, no I/O."""

from holdfast.schedules.parsing import Moment, parse_spec
from holdfast.schedules.spec import Spec

__all__ = ["Moment", "Spec", "parse_spec"]
