"""Flows as values: their shapes compared, and drawn. Pure: no store, no I/O, no code of steps."""

from holdfast.flows.differences import differences
from holdfast.flows.drawing import draw, rule_words, to_mermaid
from holdfast.flows.graphs import find_circle, flows_run, leaves, steps_by_depth
from holdfast.flows.shape import canonical_pattern, canonical_shape, shape_hash

__all__ = [
    "canonical_pattern",
    "canonical_shape",
    "differences",
    "draw",
    "find_circle",
    "flows_run",
    "leaves",
    "rule_words",
    "shape_hash",
    "steps_by_depth",
    "to_mermaid",
]
