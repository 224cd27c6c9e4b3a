"""`holdfast sweep`: what would be deleted, and its deletion."""

from __future__ import annotations

import psycopg

from tests.cli.conftest import CommandLine


def ended(cli: CommandLine, count: int = 1, days: int = 40) -> None:
    """Write runs that ended so many days ago."""
    with psycopg.connect(cli.url) as connection:
        connection.execute(
            """
            insert into holdfast.runs (run_id, name, version, queue, priority, status, input,
                created_at, completed_at, delete_after)
            select gen_random_uuid(), 'sample/double', 1, 'default', 2, 'terminated', 'null',
                e.at, e.at, e.at + interval '30 days'
            from (select now() - %s * interval '1 day' as at from generate_series(1, %s)) as e
            """,
            (days, count),
        )


def test_a_dry_run_shows_what_would_go_and_changes_nothing(cli: CommandLine) -> None:
    """B8."""
    assert "nothing to delete" in cli("sweep", "--dry-run").stdout
    ended(cli, 3)
    ended(cli, 1, days=1)
    shown = cli("sweep", "--dry-run").stdout
    assert "sample/double" in shown
    assert "10 d ago" in shown
    assert "3 runs would be deleted" in shown
    [share] = cli.json("sweep", "--dry-run")
    assert (share["name"], share["due"], share["kept"]) == ("sample/double", 3, 0)


def test_a_sweep_deletes_what_is_due(cli: CommandLine) -> None:
    """B8."""
    ended(cli, 3)
    ended(cli, 1, days=1)
    assert "deleted 3 runs" in cli("sweep").stdout
    assert cli.json("sweep") == {"deleted": 0, "kept": 0}
    assert len(cli.json("runs", "list")["runs"]) == 1


def test_doctor_says_if_nobody_sweeps(cli: CommandLine) -> None:
    """B8."""

    def sweeper() -> tuple[str, str]:
        [found] = [each for each in cli.json("doctor") if each["check"] == "sweeper"]
        return found["level"], found["message"]

    assert sweeper() == ("ok", "0 runs to delete")
    ended(cli, 3)
    level, message = sweeper()
    assert level == "warn"
    assert message.startswith("3 runs to delete, the oldest for 10 d")
    assert message.endswith("nobody sweeps")
    assert "→ holdfast sweep" in cli("doctor").stdout


def test_a_start_says_how_long_its_run_is_kept(cli: CommandLine) -> None:
    """B8. Instead of what its workflow says."""
    run_id = cli.start("double", "1", "--retention", "90d")
    with psycopg.connect(cli.url) as connection:
        row = connection.execute(
            "select extract(epoch from retention)::int from holdfast.runs where run_id = %s",
            (run_id,),
        ).fetchone()
    assert row == (90 * 86_400,)
