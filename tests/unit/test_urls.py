"""What a database URL says: hosts, login, and the parameters of libpq and of hosted PostgreSQL."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from holdfast.cli.settings import Settings
from holdfast.database import parameters
from holdfast.database.parameters import Keepalive
from holdfast.database.resolve import Connecting, resolve_database
from holdfast.database.urls import read_url, redact, split_urls
from holdfast.errors import ConfigurationError, InvalidDatabaseURL


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql:///shop", ()),
        ("postgresql://db/shop", (("db", 5432),)),
        ("postgres://db:6432/shop", (("db", 6432),)),
        ("postgresql+asyncpg://db/shop", (("db", 5432),)),
        ("postgresql://a:1,b:2,c/shop", (("a", 1), ("b", 2), ("c", 5432))),
        ("postgresql://[::1]:7,db/shop", (("::1", 7), ("db", 5432))),
        ("postgresql:///shop?host=a,b&port=1,2", (("a", 1), ("b", 2))),
        ("postgresql:///shop?host=a,b&port=6432", (("a", 6432), ("b", 6432))),
        ("postgresql:///shop?host=/run/pg&port=5433", (("/run/pg", 5433),)),
        ("postgresql://%2Frun%2Fpg/shop", (("/run/pg", 5432),)),
        ("postgresql://me@/shop?hostaddr=10.0.0.7", (("10.0.0.7", 5432),)),
    ],
)
def test_hosts_are_read_as_libpq_reads_them(url: str, hosts: tuple[tuple[str, int], ...]) -> None:
    assert read_url(url).hosts == hosts


def test_the_login_may_hold_any_character() -> None:
    target = read_url("postgresql://me%40shop:p%3Aw#1@db/the%20shop")
    assert (target.user, target.password, target.database) == ("me@shop", "p:w#1", "the shop")
    apart = read_url("postgresql://db?user=me&password=pw&dbname=shop")
    assert (apart.user, apart.password, apart.database) == ("me", "pw", "shop")
    assert not apart.parameters.settings


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db:port/shop",
        "postgresql://db:0/shop",
        "postgresql://a,b/shop?port=1,2,3",
        "postgresql://[::1/shop",
        "postgresql://db/shop?connect_timeout=soon",
        "postgresql://db/shop?sslrootcert=/nowhere/root.crt",
    ],
)
def test_what_cannot_be_read_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(InvalidDatabaseURL) as caught:
        read_url(url.replace("://", "://me:s3cret@"))
    assert "s3cret" not in str(caught.value)


def test_secrets_are_hidden_whatever_the_url_looks_like() -> None:
    assert redact("postgresql://me:s3#cret@a:1,b:2/shop") == "postgresql://me:***@a:1,b:2/shop"
    shown = redact("postgresql://a/shop?password=s3cret&sslmode=require")
    assert shown == "postgresql://a/shop?password=***&sslmode=require"
    assert "s3cret" not in repr(read_url("postgresql://me:s3cret@a/shop"))


# URLs as providers and frameworks write them
HOSTED = [
    "postgresql://me:pw@ep-x-pooler.eu.aws.neon.tech/db?sslmode=require&channel_binding=require",
    "postgres://me:pw@ep-x.neon.tech/db?sslmode=require&options=endpoint%3Dep-x",
    "postgres://postgres.x:pw@aws-0.pooler.supabase.com:6543/postgres?pgbouncer=true&supa=base",
    "postgresql://u:pw@c.postgres.database.azure.com:5432/db?sslmode=verify-full&sslrootcert=system",
    "postgresql://me:pw@db/x?schema=public&connection_limit=1&pool_timeout=0&sslaccept=strict",
    "postgresql+asyncpg://me:pw@db/x?ssl=require&prepared_statement_cache_size=0",
    "postgres://me:pw@db/x?sslmode=prefer&gssencmode=prefer&sslcompression=0&sslsni=1&"
    "target_session_attrs=primary&load_balance_hosts=random&client_encoding=utf8",
]


@pytest.mark.parametrize("url", HOSTED)
def test_nothing_is_sent_to_the_server_that_it_does_not_know(url: str) -> None:
    target = read_url(url)
    assert set(target.parameters.settings) <= {"options", "application_name"}
    assert set(target.parameters.driver) <= {"sslmode", "sslrootcert"}


def test_parameters_that_mean_something_here_are_mapped() -> None:
    found = read_url(
        "postgresql://db/x?connect_timeout=3&keepalives_idle=60&keepalives_interval=9&"
        "keepalives_count=2&tcp_user_timeout=7000&application_name=shop&options=-c%20jit%3Doff&"
        "search_path=app&target_session_attrs=primary&ssl=true&pgbouncer=true"
    ).parameters
    assert found.connect_seconds == 3
    assert found.keepalive == Keepalive(True, 60, 9, 2, 7000)
    assert found.settings == {
        "application_name": "shop",
        "options": "-c jit=off",
        "search_path": "app",
    }
    assert (found.attributes, found.driver, found.prepare) == (
        "primary",
        {"sslmode": "require"},
        False,
    )


def test_a_name_to_fall_back_on_gives_way() -> None:
    both = "postgresql://db/x?fallback_application_name=psql&application_name=shop"
    assert read_url(both).parameters.settings == {"application_name": "shop"}
    one = "postgresql://db/x?fallback_application_name=psql"
    assert read_url(one).parameters.settings == {"application_name": "psql"}


def test_of_several_hosts_the_one_that_takes_writes_is_wanted() -> None:
    assert read_url("postgresql://a/x").parameters.attributes == "any"
    assert read_url("postgresql://a,b/x").parameters.attributes == "read-write"
    assert read_url("postgresql://a,b/x?target_session_attrs=any").parameters.attributes == "any"


def test_a_protection_that_the_driver_lacks_is_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parameters._leave_out.cache_clear()  # pyright: ignore[reportPrivateUsage]
    caplog.set_level(logging.INFO)
    for _ in range(2):
        read_url("postgresql://db/x?channel_binding=require&sslsni=1&gssencmode=disable")
    warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warned) == 1
    assert "channel_binding=require" in warned[0]
    assert "verify-full" in warned[0]


def test_a_file_of_certificates_is_looked_for_at_once(tmp_path: Path) -> None:
    roots = tmp_path / "root.crt"
    with pytest.raises(InvalidDatabaseURL, match=r"sslrootcert names .*root\.crt"):
        read_url(f"postgresql://db/x?sslrootcert={roots}")
    roots.touch()
    assert read_url(f"postgresql://db/x?sslrootcert={roots}").parameters.driver


# How to connect, besides the URL

ENVIRONMENT = {
    "HOLDFAST_DATABASE_URL": "postgresql://pooler/x",
    "HOLDFAST_LISTEN_DATABASE_URL": "postgres://server/x",
    "HOLDFAST_PREPARE": "off",
}


def test_the_environment_says_how_to_connect() -> None:
    found = resolve_database(environ=ENVIRONMENT)
    assert found.connecting == Connecting(False, "postgresql://server/x")


def test_the_callers_options_win_over_the_environment() -> None:
    given = Connecting(True, "postgresql://other/x")
    assert resolve_database(environ=ENVIRONMENT, connecting=given).connecting == given


def test_the_environments_address_for_listening_belongs_to_its_database() -> None:
    found = resolve_database("postgresql://elsewhere/x", environ=ENVIRONMENT)
    assert found.connecting == Connecting(False, None)


def test_a_switch_that_is_neither_on_nor_off_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="HOLDFAST_PREPARE"):
        resolve_database(environ={**ENVIRONMENT, "HOLDFAST_PREPARE": "maybe"})


def test_the_workers_of_a_command_connect_as_it_was_told() -> None:
    """URLs may hold a password, so they travel in the environment."""
    told = Settings(database="postgresql://pooler/x", prepare=False)
    assert told.environment() == {
        "HOLDFAST_DATABASE_URL": "postgresql://pooler/x",
        "HOLDFAST_LISTEN_DATABASE_URL": "",  # those of the parent's environment are another's
        "HOLDFAST_READ_DATABASE_URL": "",
    }
    assert told.arguments() == ["--no-prepare"]
    listening = Settings(listen_database="postgresql://server/x")
    assert listening.environment() == {"HOLDFAST_LISTEN_DATABASE_URL": "postgresql://server/x"}
    reading = Settings(read_database="postgresql://replica/x")
    assert reading.environment() == {"HOLDFAST_READ_DATABASE_URL": "postgresql://replica/x"}
    assert Settings().environment() == {}


def test_an_error_names_the_variable_of_a_url_and_no_option_for_one_that_code_gave() -> None:
    with pytest.raises(InvalidDatabaseURL, match="the database URL has no scheme"):
        resolve_database("shop", environ={})
    with pytest.raises(InvalidDatabaseURL, match=r"the URL from \$DATABASE_URL has no scheme"):
        resolve_database(environ={"DATABASE_URL": "shop"})


@pytest.mark.parametrize("between", ["", ",", ";"])
def test_several_urls_without_a_space_are_refused(between: str) -> None:
    with pytest.raises(InvalidDatabaseURL, match="a second ://: write a space between"):
        read_url(f"postgresql://a/x{between}postgresql://b/y")


def test_several_urls_may_have_a_comma_before_the_space() -> None:
    urls = ["postgresql://a/x", "postgresql://b/y"]
    assert split_urls(", ".join(urls)) == split_urls(" ".join(urls)) == urls
