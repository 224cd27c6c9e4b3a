"""Why a run does not continue: what it does or waits for, and what would move it."""

from holdfast.insight.why.explain import explain, explain_run
from holdfast.insight.why.explanation import Explanation

__all__ = ["Explanation", "explain", "explain_run"]
