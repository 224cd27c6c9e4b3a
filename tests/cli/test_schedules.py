"""T6: schedules on the command line."""

from __future__ import annotations

import re
from typing import get_args

import psycopg

from holdfast.cli import exits
from holdfast.cli.commands.schedules import OVERLAPS
from holdfast.types import Overlap
from tests.cli.conftest import CommandLine
from tests.cli.hand import Hand
from tests.cli.processes import SAMPLE, until


def make(cli: CommandLine, *options: str) -> None:
    """Create `sample/nightly`, which doubles 21 at three o'clock in Berlin."""
    berlin = ("--timezone", "Europe/Berlin")
    cli("schedules", "create", "nightly", "double", "21", "--cron", "0 3 * * *", *berlin, *options)


def test_the_policies_of_overlap_are_those_that_there_are() -> None:
    assert get_args(Overlap) == OVERLAPS


def test_schedules_send_to_topics_and_queues(cli: CommandLine) -> None:
    """T6. Each tick publishes or sends; nothing runs that could overlap."""
    create = ("schedules", "create")
    unknown = cli(*create, "sample/poll", "--message-queue", "polls", "--every", "15m", code=4)
    assert "no message queue 'polls'" in unknown.stderr
    cli("queue", "create", "polls", "--fifo")
    polls = ("--message-queue", "polls", "--group", "eu")
    cli(*create, "sample/poll", '{"n": 2}', *polls, "--every", "15m")
    made = cli(*create, "sample/clock", '{"n": 1}', "--topic", "clock.hour", "--cron", "@hourly")
    assert 'publishes to topic clock.hour: {"n":1}' in made.stdout
    listed = cli("schedules", "list").stdout
    assert "topic clock.hour" in listed
    assert "message queue polls" in listed
    assert "published, and reached 0 targets" in cli("schedules", "trigger", "clock").stderr
    message_id = cli("schedules", "trigger", "poll").stdout.strip()
    shown = cli("schedules", "show", "poll").stdout
    assert 'sends to message queue polls: {"n":2}' in shown
    assert "group eu" in shown
    assert f"sent message {message_id} (trigger)" in shown
    cli("schedules", "update", "poll", "--input", "7", "--group", "us")
    target = cli.json("schedules", "show", "poll")["target"]
    assert (target["kind"], target["input"], target["group"]) == ("queue", 7, "us")
    skip = ("--topic", "a", "--cron", "@daily", "--overlap", "skip")
    refused = cli(*create, "sample/other", *skip, code=2)
    assert "starts no run that could overlap" in refused.stderr
    both = cli(*create, "sample/other", "double", "21", "--topic", "a", "--every", "1m", code=2)
    assert "there is no WORKFLOW" in both.stderr
    neither = cli(*create, "sample/other", "--every", "1m", code=2)
    assert "give a WORKFLOW, --topic or --message-queue" in neither.stderr
    alone = cli(*create, "other", "--topic", "a", "--every", "1m", code=2)
    assert "write APP/other" in alone.stderr


def test_a_schedule_is_created_listed_and_shown(cli: CommandLine) -> None:
    assert "no schedules in" in cli("schedules", "list").stderr
    make(cli, "--overlap", "buffer_one", "--jitter", "30s", "--tag", "a", "--note", "for finance")
    cli(
        "schedules",
        "create",
        "often",
        "sample/double",
        "1",
        "--every",
        "15m",
        "--end",
        "2099-01-01",
    )
    listed = cli("schedules", "list").stdout.splitlines()
    assert listed[0].split() == ["schedule", "fires", "target", "last", "next"]
    assert listed[1].startswith("sample/nightly  0 3 * * * Europe/Berlin  sample/double")
    assert listed[2].startswith("sample/often    every 15 m")
    shown = cli("schedules", "show", "nightly").stdout
    assert "starts workflow sample/double@1 with input 21" in shown
    assert "overlap buffer_one, catch_up 1 d, max_missed 1, jitter 30 s" in shown
    assert "note: for finance" in shown
    assert "\n  tags a\n" in shown  # its workflow says the queue and the priority
    assert shown.count(" 03:00:00+0") == 3
    fields = cli.json("schedules", "show", "sample/nightly")
    assert (fields["name"], fields["when"]["cron"]) == ("sample/nightly", "0 3 * * *")
    assert (fields["target"]["input"], fields["target"]["tags"]) == (21, ["a"])
    assert len(fields["next_ticks"]) == 3
    assert [each["name"] for each in cli.json("schedules", "list", "--limit", "1")] == [
        "sample/nightly"
    ]
    assert "--after sample/nightly" in cli("schedules", "list", "--limit", "1").stderr


def test_a_wrong_schedule_is_refused_with_the_way_out(cli: CommandLine) -> None:
    def refused(*options: str) -> str:
        arguments = ("schedules", "create", "nightly", "double", *options)
        return cli(*arguments, code=exits.USAGE).stderr

    assert "the hour cannot be '25'; it may be 0 to 23" in refused("--cron", "0 25 * * *")
    assert "needs a cron expression or every=" in refused()
    assert "Europe/Berlin?" in refused("--cron", "@daily", "--timezone", "Europe/Berlim")
    assert "input of double" in refused("--cron", "@daily", '"x"', "--app", SAMPLE)
    make(cli)
    again = cli(
        "schedules", "create", "nightly", "double", "--cron", "@daily", code=exits.FAILED
    ).stderr
    assert "there is a schedule sample/nightly: update it" in again
    missing = cli("schedules", "show", "weekly", code=exits.NOT_FOUND).stderr
    assert "no schedule weekly; `holdfast schedules list` names" in missing


def test_a_change_leaves_what_it_does_not_name(cli: CommandLine) -> None:
    make(cli, "--end", "2099-01-01")
    changed = cli.json(
        "schedules", "update", "nightly", "--cron", "30 4 * * *", "--input", "7", "--end", "none"
    )
    assert (changed["when"]["cron"], changed["when"]["timezone"]) == ("30 4 * * *", "Europe/Berlin")
    assert (changed["target"]["input"], changed["when"]["ends_at"]) == (7, None)
    cli("schedules", "update", "nightly", code=exits.USAGE)


def test_a_pause_is_shown_with_its_note_and_ends(cli: CommandLine) -> None:
    make(cli)
    assert "is paused" in cli("schedules", "pause", "nightly", "--note", "new disks").stdout
    cli("schedules", "pause", "nightly", code=exits.FAILED)
    assert cli("schedules", "list").stdout.splitlines()[1].endswith("paused")
    shown = cli("schedules", "show", "nightly").stdout
    assert "ago: new disks" in shown
    assert "next:" not in shown
    assert cli.json("schedules", "resume", "nightly") == {"changed": True}
    cli("schedules", "resume", "nightly", code=exits.FAILED)


def test_a_trigger_writes_the_run_which_says_its_schedule(cli: CommandLine) -> None:
    make(cli)
    at = ("--at", "2026-01-05T03:00")
    run = cli("schedules", "trigger", "nightly", *at).stdout.strip()
    assert cli("schedules", "trigger", "nightly", *at).stdout.strip() == run
    skipped = cli("schedules", "trigger", "nightly", code=exits.FAILED)
    assert "skipped: a run had not ended (trigger)" in skipped.stderr
    shown = cli("schedules", "show", "nightly").stdout
    assert f"2026-01-05 03:00:00+01:00  started {run} (trigger)" in shown
    assert "schedule sample/nightly, tick 2026-01-05T02:00:00Z" in " ".join(
        cli("runs", "show", run).stdout.split()
    )
    said = cli("runs", "why", run).stdout
    assert "it is of tick 2026-01-05T02:00:00Z of schedule sample/nightly" in said


def test_the_next_moments_of_a_schedule_and_of_an_expression(cli: CommandLine) -> None:
    make(cli)
    moments = cli("schedules", "next", "nightly", "--count", "4").stdout.splitlines()
    assert len(moments) == 4
    assert all(" 03:00:00+0" in each for each in moments)
    assert len(cli.json("schedules", "next", "@hourly", "--count", "2")) == 2
    assert len(cli("schedules", "next", "--every", "90s").stdout.splitlines()) == 10
    assert (
        "minute cannot be '61'" in cli("schedules", "next", "61 * * * *", code=exits.USAGE).stderr
    )
    cli("schedules", "next", code=exits.USAGE)
    cli("schedules", "next", "nightly", "--timezone", "UTC", code=exits.USAGE)


def test_a_deleted_schedule_is_gone(cli: CommandLine) -> None:
    make(cli)
    cli("schedules", "delete", "nightly", stdin="n\n", code=exits.INTERRUPTED)
    assert cli.json("schedules", "delete", "nightly", "--yes") == {"schedule": "sample/nightly"}
    cli("schedules", "show", "nightly", code=exits.NOT_FOUND)


def test_inputs_are_checked_and_retentions_that_are_too_long_are_told(cli: CommandLine) -> None:
    app = ("--app", SAMPLE)
    wrong = cli("schedules", "create", "n", "double", '"x"', "--every", "1h", *app, code=2)
    assert "Expected `int`" in wrong.stderr
    long = cli("schedules", "create", "n", "double", "1", "--every", "1h", "--retention", "900d")
    assert "runs are kept for 365 days at most" in long.stderr
    wrong = cli("schedules", "update", "n", "--input", '"x"', *app, code=2)
    assert "Expected `int`" in wrong.stderr
    cli("schedules", "update", "n", "--input", "2", *app)
    started = cli("start", "sample/double", "1", "--retention", "900d")
    assert "(HOLDFAST_MAX_RETENTION_DAYS), not for 900" in started.stderr
    assert "runs are kept" not in cli("start", "sample/double", "1", "--retention", "90d").stderr


def test_a_large_backfill_is_confirmed_and_can_be_cancelled(cli: CommandLine) -> None:
    make(cli)
    asked = ("schedules", "backfill", "nightly", "2020-01-01", "2026-01-01")

    def under_way() -> int:
        return int(cli.json("schedules", "show", "nightly")["backfills"])

    would = cli(*asked, "--dry-run")
    assert re.search(r"would fire the ticks of sample/nightly .*: [\d,]+ ticks\n$", would.stdout)
    refused = cli(*asked, code=exits.USAGE)
    assert re.search(r"fire the ticks of sample/nightly .*: [\d,]+ ticks\?", refused.stderr)
    assert under_way() == 0
    wrong = cli("schedules", "backfill", "nightly", "once", "2026-01-01", "--dry-run", code=2)
    assert "start: not a moment: 'once'" in wrong.stderr
    assert cli.json(*asked, "--yes")["ticks"] > 1000
    assert under_way() == 1
    done = cli("schedules", "cancel-backfills", "nightly")
    assert done.stdout == "1 backfill cancelled, 0 waiting ticks dropped\n"
    assert under_way() == 0
    cli("schedules", "cancel-backfills", "none", code=exits.NOT_FOUND)


def test_a_worker_fires_the_ticks_of_a_backfill(served: CommandLine) -> None:
    served("schedules", "create", "hours", "double", "4", "--cron", "@hourly")
    asked = served("schedules", "backfill", "hours", "2026-01-05T00:00", "2026-01-05T02:30")
    assert asked.stdout.endswith("from 2026-01-05T00:00 to 2026-01-05T02:30: 3 ticks\n")

    def started() -> list[dict[str, object]] | None:
        ticks = served.json("schedules", "show", "hours")["ticks"]
        done = [tick for tick in ticks if tick["origin"] == "backfill" and tick["run_id"]]
        return done if len(done) == 3 else None

    ticks = until(started, "three ticks to start runs")
    assert [each["tick_at"] for each in ticks] == [
        f"2026-01-05T0{hour}:00:00Z" for hour in (2, 1, 0)
    ]
    for tick in ticks:
        served.await_state(str(tick["run_id"]), "completed")


def test_doctor_names_schedules_that_are_silent_since_the_clock_was_set_back(
    cli: CommandLine,
) -> None:
    """They fired while the clock was ahead; a pause and a resume let them begin from now."""

    def found() -> str:
        [one] = [each for each in cli.json("doctor") if each["check"] == "schedules"]
        return str(one["message"])

    make(cli)
    with psycopg.connect(cli.url) as connection:
        connection.execute(
            "update holdfast.schedules set position = now() + interval '1 hour', "
            "next_tick_at = now() + interval '1 day', look_at = now() + interval '1 day'"
        )
    assert found().startswith("1 schedule silent, because the database's clock was set back")
    assert "holdfast schedules resume sample/nightly" in cli("doctor").stdout
    cli("schedules", "pause", "nightly")
    cli("schedules", "resume", "nightly")
    assert found() == "no schedule is late"


def test_doctor_names_schedules_that_are_late(cli: CommandLine, hand: Hand) -> None:
    def found() -> tuple[str, str]:
        [one] = [each for each in cli.json("doctor") if each["check"] == "schedules"]
        return one["level"], one["message"]

    def change(assignments: str) -> None:
        with psycopg.connect(cli.url) as connection:
            connection.execute(f"update holdfast.schedules set {assignments}".encode())

    assert found() == ("ok", "no schedule is late")
    make(cli)
    assert found() == ("ok", "no schedule is late")
    an_hour_ago = "now() - interval '1 hour'"
    change(f"updated_at = {an_hour_ago}, position = {an_hour_ago}")
    assert found() == ("warn", "1 schedule late, sample/nightly by 1 h")
    assert "→ holdfast worker MODULE:APP" in cli("doctor").stdout
    hand.sign_on(["sample/double@1"])
    assert "see the log of the workers" in cli("doctor").stdout
    change(f"next_tick_at = {an_hour_ago}")
    assert found()[0] == "warn"
    change("next_tick_at = now() + interval '1 hour'")
    assert found()[0] == "ok"
    change("error = 'unknown time zone'")
    assert found()[1] == (
        "the ticks of 1 schedule cannot be computed, as of sample/nightly: unknown time zone"
    )
    assert "holdfast schedules update sample/nightly" in cli("doctor").stdout
    cli("schedules", "pause", "nightly")
    assert found()[0] == "ok"
