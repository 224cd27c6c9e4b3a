"""A short chaos without and with Redis, and an audit that sees what is broken."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.blows import strike
from tests.chaos.names import READERS
from tests.chaos.program import Verdict, chaos, look
from tests.chaos.world import World
from tests.clusters import Homes
from tests.crash.ledger import read_ledger
from tests.databases import execute
from tests.valkey import needs_valkey

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

PATIENCE_SECONDS = 120.0
# By a seed, so many blows at once have what must be among them.
SEEDS = {False: 140, True: 548}
BLOWS = 8
MUST = {"kill_worker", "kill_postgres", "kill_reader"}
few = partial(strike, most=BLOWS, between=[0.5])


@pytest.mark.parametrize("redis", [False, pytest.param(True, marks=needs_valkey)])
async def test_what_is_killed_at_random_loses_and_repeats_nothing(
    homes: Homes, tmp_path: Path, redis: bool
) -> None:
    """Everything at once; `python -m tests.chaos` does it for as long as it is asked to."""
    with World([homes.make(tmp_path / "home")], redis=redis) as world:
        verdict = await chaos(world, SEEDS[redis], PATIENCE_SECONDS, 2, strike=few)
        assert verdict.faults == []
        assert verdict.blows.keys() >= MUST, "too little was killed: the test shows nothing"
        assert all(verdict.seen[f"values read by the {how}"] for how in READERS)
        if not redis:
            await see_what_is_broken(world, verdict)


async def see_what_is_broken(world: World, verdict: Verdict) -> None:
    """Break what the audit is to see: each is a fault of its own, and there are no others."""
    [step, *_] = [id for id in read_ledger(world.ledger) if id.endswith("/speak")]
    parcel = next(id for id in verdict.load.sent if id.startswith("parcels"))
    entries = [json.loads(line) for line in world.ledger.read_text().splitlines()]
    kept = [entry for entry in entries if entry["id"] != parcel]
    extra = [{"id": step, "attempt": 1, "nonce": f"extra {n}", "pid": 0} for n in range(20)]
    world.ledger.write_text("".join(json.dumps(entry) + "\n" for entry in [*kept, *extra]))
    notes = world.notes("client").read_text().splitlines(keepends=True)
    first = next(n for n, note in enumerate(notes) if '"item"' in note)
    world.notes("client").write_text("".join([*notes[: first + 1], *notes[first:]]))
    execute(world.servers[0].url, "insert into public.booked values ('nobody')")
    _, faults = await look(world, verdict.load)
    found = sorted(fault.partition(":")[0].partition(" ")[0] for fault in faults)
    assert found == ["bookings", "crash/tell", "messages", "the"], faults
