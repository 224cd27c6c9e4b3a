"""`holdfast migrate`."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import psycopg

from holdfast.cli import exits
from tests.cli.conftest import CommandLine
from tests.cli.processes import call


def test_dry_run_says_what_migrate_then_does(empty_database_url: str) -> None:
    cli = CommandLine(empty_database_url)
    planned = cli.json("migrate", "--dry-run")
    assert planned["applied"] is False
    assert planned["migrations"][0] == "0001_engine"
    cli("runs", "list", code=exits.DATABASE)
    assert cli.json("migrate") == planned | {"applied": True}
    assert "up to date" in cli("migrate").stdout
    assert cli.json("runs", "list")["runs"] == []


def test_a_dry_run_by_a_role_that_may_not_migrate_is_refused(empty_database_url: str) -> None:
    """Fault: it said what it would apply, and exited with 0."""
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("create role stranger login")
        server = urlsplit(empty_database_url)
        stranger = server._replace(netloc="stranger@" + server.netloc.rpartition("@")[2])
        try:
            cli = CommandLine(urlunsplit(stranger))
            refused = cli("migrate", "--dry-run", code=exits.DATABASE)
            assert "role 'stranger' may not create what schema 'holdfast' lacks" in refused.stderr
        finally:
            connection.execute("drop role stranger")


def test_the_roles_that_get_rights_are_named(empty_database_url: str) -> None:
    cli = CommandLine(empty_database_url)
    cli("migrate")
    with psycopg.connect(empty_database_url) as connection:
        role = str(connection.execute("select current_user").fetchall()[0][0])
    assert f"{role} has the rights" in cli("migrate", "--grant", role).stdout
    assert f"{role} would get the rights" in cli("migrate", "--grant", role, "--dry-run").stdout
    assert cli.json("migrate", "--grant", role)["granted_to"] == [role]


def test_sql_needs_no_database_and_psql_can_apply_it(empty_database_url: str) -> None:
    """T12. Migrations are appliable by any SQL client alone."""
    done = call("--schema", "shop", "migrate", "--sql", env={"DATABASE_URL": "nonsense"})
    assert done.returncode == exits.OK
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(done.stdout.encode())
    assert "up to date" in CommandLine(empty_database_url)("--schema", "shop", "migrate").stdout


def test_the_schema_may_have_another_name(empty_database_url: str) -> None:
    """T12. The schema's name can be chosen."""
    cli = CommandLine(empty_database_url)
    cli("migrate", "--schema", "shop")
    run = cli.start("sample/double", "1", "--schema", "shop")
    assert cli.json("runs", "show", run, "--schema", "shop")["run_id"] == run
    assert "holdfast migrate" in cli("runs", "list", code=exits.DATABASE).stderr


def test_a_schema_name_that_is_not_an_identifier_is_refused(empty_database_url: str) -> None:
    cli = CommandLine(empty_database_url)
    cli("migrate", "--schema", 'x"; drop schema public; --', code=exits.DATABASE)
