"""The shapes of the flows that are measured; those of all engines have them in common.

`one(n)` is a single step. `chain(n)` is a row of steps, each given what the one before returned.
`wide(n)` is a step that returns n numbers, and a map over them. `diamond(n)` is a step, many steps
that depend on it, and a step that depends on all of these. Most steps return a small object.
"""

from __future__ import annotations

from typing import Final

FLOWS: Final = ("one", "chain", "wide", "diamond")
CHAIN_STEPS: Final = 50
SIDES: Final = 100  # parallel steps of the diamond
