"""The tests that are left out over several databases are there."""

from __future__ import annotations

from pathlib import Path

from tests.shards.differences import REASONS

STORE = Path(__file__).parents[1] / "store"


def test_what_is_left_out_is_there() -> None:
    for place in REASONS:
        file, _, name = place.partition("::")
        assert f"def {name or 'test_'}" in (STORE / file).read_text(), place
