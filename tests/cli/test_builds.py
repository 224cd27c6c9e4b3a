"""`holdfast builds`, and `holdfast runs move-build`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from uuid import UUID

from holdfast.cli import exits
from holdfast.store.postgres import PostgresStore
from holdfast.types import NewRun
from tests.cli.conftest import CommandLine

BUY = "shop/buy@1"
RUN = "00000000-0000-0000-0000-00000000abcd"


def declare(url: str, *builds: str, app: str = "shop") -> None:
    """Do as workers of these builds that start; the first time a run is started."""

    async def work() -> None:
        store = PostgresStore(url)
        await store.open()
        for build in builds:
            await store.declare_build(app, build, [f"{app}/buy@1"])
        await store.start_runs([NewRun(run_id=UUID(RUN), name="shop/buy", key="7")])
        await store.close()

    asyncio.run(work())


def words(text: str) -> str:
    return " ".join(text.split())


def test_builds_are_listed_promoted_and_left(cli: CommandLine) -> None:
    assert "no app has a build here" in cli("builds", "list").stderr
    assert "no app has a build" in cli("builds", "promote", "b1", code=exits.USAGE).stderr
    declare(cli.url, "b1")
    declare(cli.url, "b2")
    listed = words(cli("builds", "list").stdout)
    assert "shop b1 current 1 0 no worker" in listed
    assert "shop b2 0 0 safe to stop" in listed
    [run] = cli.json("runs", "list", "--build", "b1")["runs"]
    assert run["build"] == "b1"
    assert cli.json("runs", "list", "--build", "b2")["runs"] == []
    assert cli.json("runs", "count", "--by", "state", "--build", "b1")["counts"] == {"queued": 1}
    wrong = cli("runs", "list", "--build", "b 1", code=exits.USAGE).stderr
    assert "'b 1' is not a name for a build" in wrong
    assert "10% of new runs get build b2" in cli("builds", "ramp", "b2", "10%").stdout
    assert "already" in cli("builds", "ramp", "b2", "10", code=exits.FAILED).stderr
    assert "shop b2 10% 0 0" in words(cli("builds", "list").stdout)
    wrong = cli("builds", "ramp", "b2", "110%", code=exits.USAGE).stderr
    assert "'110%' is not a share of new runs: it is 0% to 100%" in wrong
    assert "current one of app shop" in cli("builds", "ramp", "b1", "5%", code=exits.USAGE).stderr
    cli("builds", "promote", "b2")
    assert "already" in cli("builds", "promote", "b2", code=exits.FAILED).stderr
    unknown = words(cli("builds", "promote", "b9", code=exits.NOT_FOUND).stderr)
    assert "no worker of build b9 of app shop has ever signed on (known are " in unknown
    bad = cli("builds", "promote", "b 9", code=exits.USAGE).stderr
    assert "'b 9' is not a name for a build" in bad
    promoted = cli("builds", "promote", "b9", "--force", "--json")
    assert json.loads(promoted.stdout) == {"changed": True, "current": "b9", "workers": 0}
    warning = "WARNING: no live worker has build b9 of app shop: new runs wait for one"
    assert warning in promoted.stderr
    idle = "new runs of pinned workflows get build b9 of app shop, which has no live worker"
    assert idle in words(cli("doctor").stdout)
    assert cli.json("builds", "roll-back")["current"] == "b2"
    rolled = cli("builds", "roll-back")
    assert "new runs get build b1 (they got build b2 before)" in rolled.stdout
    assert "no live worker has build b1 of app shop" in rolled.stderr
    [b1] = [each for each in cli.json("builds", "list") if each["build"] == "b1"]
    assert (b1["open_runs"], b1["is_current"], b1["safe_to_stop"]) == (1, True, False)
    declare(cli.url, "c1", app="bar")
    assert "several apps have builds" in cli("builds", "roll-back", code=exits.USAGE).stderr
    cli("builds", "promote", "b1", "--app", "shop", code=exits.FAILED)
    assert "move-build --from b1 --to BUILD --app shop" in words(cli("doctor").stdout)
    waits = cli("start", "shop/buy").stderr
    assert "it stays with build b1, and no live worker of that build serves shop/buy@1" in waits
    assert "did you mean" not in waits


def test_runs_are_moved_where_their_build_has_no_worker(cli: CommandLine) -> None:
    declare(cli.url, "b1", "b2")
    why = words(cli("runs", "why", RUN).stdout)
    assert "it stays with build b1, and no live worker of that build serves shop/buy@1" in why
    assert f"runs move-build {RUN} --to BUILD" in why
    doctor = words(cli("doctor").stdout)
    assert "no live worker of build b1 of app shop (1 open run)" in doctor
    assert "runs move-build --from b1 --to BUILD, or start one" in doctor
    for wrong in ((), (RUN, "--from", "b1", "--to", "b2"), (RUN,), (RUN, "--to", "b2", "--unpin")):
        cli("runs", "move-build", *wrong, code=exits.USAGE)
    assert "moved 1 run to build b2" in cli("runs", "move-build", RUN, "--to", "b2").stdout
    again = cli("runs", "move-build", RUN, "--to", "b2", code=exits.FAILED).stderr
    assert f"run {RUN}: it was there already" in again
    cli("runs", "move-build", "--from", "b2", "--to", "b9", "--app", "shop", code=exits.NOT_FOUND)
    declare(cli.url, "b3")
    moved = cli.json("runs", "move-build", "--from", "b2", "--unpin")
    assert moved == {"moved": 1, "outcomes": {RUN: "moved"}}
    assert cli.json("runs", "show", RUN)["build"] is None


def test_a_check_of_a_build_that_no_worker_had_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text("from holdfast import App\n\napp = App('shop')\n")
    declare(cli.url, "b1")
    for jobs in ("1", "2"):
        refused = cli("check", str(file), "--build", "b9", "--jobs", jobs, code=exits.NOT_FOUND)
        assert "no worker of build b9 of app shop has ever signed on" in refused.stderr
    wrong = cli("check", str(file), "--build", "", code=exits.USAGE).stderr
    assert "is not a name for a build" in wrong
    cli("check", str(file), "--build", "b1", code=exits.FAILED)  # it lacks the run's workflow
