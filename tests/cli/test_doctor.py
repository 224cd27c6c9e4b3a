"""`holdfast doctor`: each line is a check with its way out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest

from holdfast.cli import exits
from holdfast.database.embedded import EmbeddedServer
from holdfast.insight import doctor, examining, transactions
from tests.cli.conftest import CommandLine
from tests.cli.hand import Hand, activity
from tests.cli.processes import SAMPLE, running
from tests.databases import DatabaseServer


@pytest.fixture(autouse=True)
def runs_share_the_loop() -> None:
    """Let each command have new sessions: others do not have what a test sets for a database."""


@pytest.fixture(scope="module")
def database_server(durable_server: EmbeddedServer, worker_id: str) -> Iterator[DatabaseServer]:
    """A server whose durability is what users get: one of the checks."""
    server = DatabaseServer(durable_server.url, worker_id)
    yield server
    server.close()


def levels(cli: CommandLine, code: int = exits.OK) -> dict[str, str]:
    return {found["check"]: found["level"] for found in cli.json("doctor", code=code)}


def test_all_is_well_with_a_worker(cli: CommandLine, tmp_path: Path) -> None:
    with running(tmp_path / "log", "--database", cli.url, "worker", SAMPLE) as worker:
        worker.await_text("ready")
        assert set(levels(cli).values()) == {"ok"}


def test_without_a_worker_it_says_how_to_start_one(cli: CommandLine) -> None:
    assert levels(cli)["workers"] == "warn"
    assert "→ holdfast worker MODULE:APP" in cli("doctor").stdout


def test_handlers_without_a_live_worker_are_named(cli: CommandLine) -> None:
    """B7. What no live worker can run is visible."""
    cli.start("double", "1", "--queue", "gpu", "--workflow-version", "3")
    assert levels(cli)["handlers"] == "warn"
    shown = cli("doctor").stdout
    assert "no live worker serves sample/double@3 on queue 'gpu' (1 run)" in shown
    assert "→ holdfast worker MODULE:APP --queue gpu" in shown


def test_a_silent_worker_is_named(cli: CommandLine, tmp_path: Path) -> None:
    with running(tmp_path / "log", "--database", cli.url, "worker", SAMPLE) as worker:
        worker.await_text("ready")
        worker.popen.kill()
        worker.ended()
    with psycopg.connect(cli.url) as connection:
        connection.execute("update holdfast.workers set heard_at = now() - interval '1 minute'")
    assert levels(cli)["workers"] == "warn"
    shown = cli("doctor").stdout
    assert "has been silent for 1 m" in shown
    assert "→ holdfast worker MODULE:APP, any live worker takes" in shown


def test_a_missing_schema_fails_with_the_command_that_makes_it(empty_database_url: str) -> None:
    cli = CommandLine(empty_database_url)
    assert levels(cli, code=exits.FAILED)["schema"] == "fail"
    assert "→ holdfast migrate" in cli("doctor", code=exits.FAILED).stdout


def test_missing_rights_are_not_fixed_by_a_migration(cli: CommandLine) -> None:
    role = f"limited_{uuid4().hex[:8]}"
    with psycopg.connect(cli.url, autocommit=True) as connection:
        connection.execute(f"create role {role} login".encode())
        try:
            url = urlsplit(cli.url)
            server = url.netloc.rpartition("@")[2]
            limited = CommandLine(urlunsplit(url._replace(netloc=f"{role}@{server}")))
            found = limited.json("doctor", code=exits.FAILED)[-1]
        finally:
            connection.execute(f"drop role {role}".encode())
    assert (found["check"], found["level"], found["remedy"]) == ("schema", "fail", "")
    assert "may not use schema" in found["message"]


def test_a_database_that_cannot_be_reached_is_code_3() -> None:
    CommandLine("postgresql://localhost:1/shop")("doctor", code=exits.DATABASE)


def test_lost_durability_is_a_warning(cli: CommandLine) -> None:
    with psycopg.connect(cli.url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'alter database "{name}" set synchronous_commit = off'.encode())
    found = next(each for each in cli.json("doctor") if each["check"] == "durability")
    assert (found["level"], found["remedy"][:22]) == ("warn", "set synchronous_commit")


@pytest.mark.parametrize(
    ("name", "value", "level", "said"),
    [
        ("default_transaction_read_only", "on", "fail", "takes no writes"),
        ("default_transaction_isolation", "serializable", "warn", "is 'serializable'"),
        ("statement_timeout", "500", "warn", "statement_timeout is 500 ms"),
        ("lock_timeout", "500", "warn", "lock_timeout is 500 ms"),
        ("idle_session_timeout", "5000", "warn", "idle_session_timeout is 5000 ms"),
        (
            "idle_in_transaction_session_timeout",
            "900",
            "warn",
            "steps whose code pauses for longer",
        ),
    ],
)
def test_settings_that_hold_up_work_are_named(
    cli: CommandLine, name: str, value: str, level: str, said: str
) -> None:
    """Fault: all was well where no call could write."""
    assert levels(cli)["settings"] == "ok"
    with psycopg.connect(cli.url, autocommit=True) as connection:
        database = connection.info.dbname
        connection.execute(f'alter database "{database}" set {name} = {value}'.encode())
    code = exits.FAILED if level == "fail" else exits.OK
    found = next(each for each in cli.json("doctor", code=code) if each["check"] == "settings")
    assert (found["level"], said in found["message"]) == (level, True)


def test_each_setting_that_is_too_short_is_named(cli: CommandLine) -> None:
    with psycopg.connect(cli.url, autocommit=True) as connection:
        database = connection.info.dbname
        for name in ("statement_timeout", "lock_timeout"):
            connection.execute(f'alter database "{database}" set {name} = 900'.encode())
    found = [each["message"] for each in cli.json("doctor") if each["check"] == "settings"]
    assert [message.partition(" ")[0] for message in found] == ["lock_timeout", "statement_timeout"]


def test_a_check_that_cannot_be_made_hides_no_other(cli: CommandLine) -> None:
    """Fault: the doctor ended with an error, and what it had found was not shown."""
    with psycopg.connect(cli.url) as connection:
        connection.execute("alter table holdfast.pauses rename to others")
        connection.commit()
        found = levels(cli, code=exits.FAILED)
        connection.execute("alter table holdfast.others rename to pauses")
    failed = [name for name, level in found.items() if level == "fail"]
    assert failed == ["pauses", "message queues"]
    assert list(found)[-1] == "notify"


def test_a_table_that_another_transaction_has_is_waited_for_for_a_moment(cli: CommandLine) -> None:
    """Fault: after 20 s the doctor said that the database cannot be reached."""
    with psycopg.connect(cli.url) as connection:
        connection.execute("lock table holdfast.limits")
        found = {each["check"]: each for each in cli.json("doctor", code=exits.FAILED)}
    assert "another transaction holds" in found["limits"]["message"]
    assert found["notify"]["level"] == "ok"


def test_a_function_that_is_gone_is_named_with_the_way_back(cli: CommandLine) -> None:
    """Fault: all was well, `migrate` had nothing to do, and no run could be paused."""
    with psycopg.connect(cli.url, autocommit=True) as connection:
        connection.execute("drop function holdfast.list_pauses")
        found = cli.json("doctor", code=exits.FAILED)[-1]
        assert found["check"] == "schema"
        assert "lacks 1 function that it had, such as holdfast.list_pauses" in found["message"]
        again, command = found["remedy"].split(", then ")
        assert "up to date" in cli("migrate").stdout
        connection.execute(again.encode())
    assert command == "`holdfast migrate`"
    cli("migrate")
    assert levels(cli)["schema"] == "ok"


def test_an_index_that_is_not_valid_is_named(cli: CommandLine) -> None:
    """Fault: all was well, and each claim read a whole index."""
    change = "update pg_index set indisvalid = %s where indexrelid = 'holdfast.tasks_due'::regclass"
    with psycopg.connect(cli.url, autocommit=True) as connection:
        connection.execute(change, [False])
        [found] = [each for each in cli.json("doctor") if each["check"] == "schema"]
        assert found["level"] == "warn"
        assert "index holdfast.tasks_due, which is not valid" in found["message"]
        again = found["remedy"].partition(";")[0]
        connection.execute(again.encode())
    assert levels(cli)["schema"] == "ok"


def test_row_level_security_without_a_policy_is_named(cli: CommandLine) -> None:
    """Fault: all was well, and no run could be started. Hosts turn it on for all tables."""
    with role_with_rights(cli) as limited, psycopg.connect(cli.url, autocommit=True) as connection:
        connection.execute("alter table holdfast.runs enable row level security")
        found = {each["check"]: each for each in limited.json("doctor", code=exits.FAILED)}
        connection.execute("create policy all_rows on holdfast.runs using (true)")
        assert levels(limited)["rights"] == "ok"
        connection.execute("drop policy all_rows on holdfast.runs")
        connection.execute("alter table holdfast.runs disable row level security")
    assert "row-level security keeps role" in found["rights"]["message"]
    assert found["rights"]["remedy"] == "alter table holdfast.runs disable row level security"


def test_a_role_that_may_make_few_connections_is_told_so(cli: CommandLine) -> None:
    with role_with_rights(cli) as limited, psycopg.connect(cli.url, autocommit=True) as connection:
        assert levels(limited)["connections"] == "ok"
        role = str(urlsplit(limited.url).username)
        connection.execute(f"alter role {role} connection limit 4".encode())
        found = {each["check"]: each for each in limited.json("doctor")}
    assert found["connections"]["level"] == "warn"
    assert "a worker makes up to 6" in found["connections"]["message"]


def test_connections_of_other_roles_are_counted(cli: CommandLine) -> None:
    """Fault: only a superuser, or a role with `pg_read_all_stats`, was told that few are left."""
    with role_with_rights(cli) as limited, ExitStack() as others:
        before = connections_left(limited)
        for _ in range(40):
            others.enter_context(psycopg.connect(cli.url))
        assert connections_left(limited) < before - 20


def connections_left(cli: CommandLine) -> int:
    (found,) = [each for each in cli.json("doctor") if each["check"] == "connections"]
    return int(str(found["message"]).split()[0])


@contextmanager
def role_with_rights(cli: CommandLine) -> Iterator[CommandLine]:
    """Make a role that may use the schema, and does not own it."""
    role = f"granted_{uuid4().hex[:8]}"
    with psycopg.connect(cli.url, autocommit=True) as connection:
        connection.execute(f"create role {role} login".encode())
        cli("migrate", "--grant", role)
        url = urlsplit(cli.url)
        server = url.netloc.rpartition("@")[2]
        yield CommandLine(urlunsplit(url._replace(netloc=f"{role}@{server}")))
        connection.execute(f"drop owned by {role}".encode())
        connection.execute(f"drop role {role}".encode())


def test_activities_without_a_live_worker_are_named(cli: CommandLine, hand: Hand) -> None:
    """B7."""
    run = cli.start("double", "1")
    hand.turn(run, activity("resize", queue="gpu"))
    assert "activity sample/resize on queue 'gpu' (1 task)" in cli("doctor").stdout


def test_stuck_runs_and_held_activities_are_counted(cli: CommandLine, hand: Hand) -> None:
    assert levels(cli)["stuck"] == "ok"
    hand.turn(cli.start("double", "1"), activity("resize", queue="gpu"))
    other = cli.start("double", "2")
    hand.get_stuck(other, "the code has changed")
    hand.hold(hand.lease_activity("resize", queue="gpu"), "its arguments do not fit")
    (found,) = [each for each in cli.json("doctor") if each["check"] == "stuck"]
    assert (found["level"], found["message"]) == (
        "warn",
        "1 run is stuck, 1 activity cannot be begun",
    )
    assert f"holdfast runs why {other}, then correct the code" in cli("doctor").stdout
    cli("runs", "pause", other)
    (found,) = [each for each in cli.json("doctor") if each["check"] == "stuck"]
    assert found["message"] == "1 activity cannot be begun"


def test_pauses_are_named_with_the_command_that_resumes(cli: CommandLine) -> None:
    assert levels(cli)["pauses"] == "ok"
    cli("queues", "pause", "mail", "--reason", "no mail today")
    shown = cli("doctor").stdout
    assert "workers begin nothing of queue 'mail' since" in shown
    assert "(no mail today)" in shown
    assert "holdfast queues resume mail" in shown


def test_workflows_that_several_apps_have_are_named(cli: CommandLine, hand: Hand) -> None:
    hand.known("shop")
    (found,) = [each for each in cli.json("doctor") if each["check"] == "apps"]
    assert found["level"] == "ok"
    assert found["message"].startswith("sample, shop; to be called with their apps, as app/name: ")
    assert "double (in sample and shop)" in found["message"]


def test_what_a_role_may_not_use_is_named(cli: CommandLine) -> None:
    role = f"limited_{uuid4().hex[:8]}"
    with psycopg.connect(cli.url, autocommit=True) as connection:
        connection.execute(f"create role {role} login".encode())
        try:
            connection.execute(f"grant usage on schema holdfast to {role}".encode())
            connection.execute(f"grant select on all tables in schema holdfast to {role}".encode())
            url = urlsplit(cli.url)
            server = url.netloc.rpartition("@")[2]
            limited = CommandLine(urlunsplit(url._replace(netloc=f"{role}@{server}")))
            found = {each["check"]: each for each in limited.json("doctor", code=exits.FAILED)}
        finally:
            connection.execute(f"drop owned by {role}".encode())
            connection.execute(f"drop role {role}".encode())
    assert found["rights"]["level"] == "fail"
    assert "apps" in found["rights"]["message"]
    assert found["rights"]["remedy"] == (f"holdfast migrate --grant {role}, as the schema's owner")


def test_a_transaction_that_is_idle_and_keeps_locks_is_named(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a session was named after five minutes, and only if it had a snapshot."""
    monkeypatch.setattr(transactions, "_IDLE_SECONDS", 0.1)
    with psycopg.connect(cli.url, application_name="shop") as connection:
        connection.execute("select from holdfast.schema_migrations")
        time.sleep(0.2)
        assert levels(cli)["transactions"] == "ok"  # it has locked no rows
        connection.execute("select from holdfast.schema_migrations for update")
        time.sleep(0.2)
        assert levels(cli)["transactions"] == "warn"
        process = connection.info.backend_pid
        shown = cli("doctor").stdout
    assert f"process {process} (shop) has been idle for " in shown
    assert f"select pg_terminate_backend({process})" in shown
    assert levels(cli)["transactions"] == "ok"


def test_a_transaction_that_is_idle_and_has_a_table_is_named(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no id until it writes."""
    monkeypatch.setattr(transactions, "_IDLE_SECONDS", 0.1)
    with psycopg.connect(cli.url) as connection:
        connection.execute("lock table holdfast.stats in share mode")
        time.sleep(0.2)
        assert levels(cli)["transactions"] == "warn"


def test_a_statement_that_locks_a_table_is_named(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: only idle sessions were, while other checks said that a lock was in the way."""
    monkeypatch.setattr(transactions, "_TABLE_SECONDS", 0.0)
    with locking_stats(cli, b"in share mode; select pg_sleep(600)", granted=True) as process:
        shown = str(cli.json("doctor"))
    assert f"process {process} (shop) has had holdfast.stats locked for " in shown
    assert f"select pg_terminate_backend({process})" in shown


def test_a_statement_that_waits_to_lock_a_table_is_named(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes behind it waits, too, although the one before only reads."""
    monkeypatch.setattr(transactions, "_TABLE_SECONDS", 0.0)
    monkeypatch.setattr(examining, "_LOCK_MILLIS", 50)
    with psycopg.connect(cli.url) as reader:
        reader.execute("select from holdfast.stats")
        holder = reader.info.backend_pid
        with locking_stats(cli, b"", granted=False) as process:
            shown = str(cli.json("doctor", code=exits.FAILED))
    assert f"process {process} (shop) has waited for " in shown
    assert f" to lock holdfast.stats, which process {holder} uses: others wait behind it" in shown
    assert f"select pg_terminate_backend({holder})" in shown


@contextmanager
def locking_stats(cli: CommandLine, how: bytes, *, granted: bool) -> Iterator[int]:
    """Lock a table in a session whose statement lasts, or waits for it; yield its process."""
    with closing(psycopg.connect(cli.url, application_name="shop")) as connection:
        process = connection.info.backend_pid
        connection.pgconn.send_query(b"begin; lock table holdfast.stats " + how)
        asked = "select from pg_locks where pid = %s and relation is not null and granted = %s"
        with psycopg.connect(cli.url, autocommit=True) as other:
            while other.execute(asked, (process, granted)).fetchone() is None:
                time.sleep(0.01)
        try:
            yield process
        finally:
            connection.cancel()


def test_a_replication_slot_that_nobody_reads_from_is_named(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: all was well until the disk was full."""
    with psycopg.connect(cli.url, autocommit=True) as connection:
        connection.execute("select pg_create_physical_replication_slot('mirror', true)")
        try:
            assert levels(cli)["slots"] == "ok"  # it keeps little
            monkeypatch.setattr(doctor, "_UNUSED_SLOT_BYTES", 0)
            [found] = [each for each in cli.json("doctor") if each["check"] == "slots"]
        finally:
            connection.execute("select pg_drop_replication_slot('mirror')")
    assert found["level"] == "warn"
    assert "nobody reads from replication slot 'mirror'" in found["message"]
    assert "select pg_drop_replication_slot('mirror')" in found["remedy"]
    assert levels(cli)["slots"] == "ok"
