"""Several databases that are named as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.settings import Settings
from holdfast.database.resolve import Connecting, names_several, resolve_database
from holdfast.errors import ConfigurationError, InvalidDatabaseURL

TWO = "postgres://ann:s3cret@a/shop\n  postgresql://b:5433/shop"


def test_each_has_its_place() -> None:
    found = resolve_database(environ={"HOLDFAST_DATABASE_URL": TWO})
    assert found.url == "postgresql://ann:s3cret@a/shop"
    assert found.shards == (found.url, "postgresql://b:5433/shop")
    second = found.shard(1)
    assert (second.url, second.number, second.shards) == (found.shards[1], 1, ())
    assert [each.url for each in found.parts] == list(found.shards)
    assert "s3cret" not in str(found)
    assert "postgresql://b:5433/shop (from $HOLDFAST_DATABASE_URL)" in str(found)


def test_one_is_what_it_was() -> None:
    found = resolve_database("postgresql://a/x?options=-c jit=off", environ={})
    assert (found.url, found.shards) == ("postgresql://a/x?options=-c jit=off", ())
    assert found.number is None
    assert found.parts == [found]


def test_it_is_known_without_a_look_at_them() -> None:
    assert names_several(TWO, None, {})
    assert names_several(None, None, {"DATABASE_URL": TWO})
    assert not names_several("postgresql://a/x", None, {"HOLDFAST_DATABASE_URL": TWO})
    assert not names_several(None, Path("here"), {"HOLDFAST_DATABASE_URL": TWO})
    assert not names_several(None, None, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("postgresql://a/x postgresql://b:s3cret/x", "place 2 of the list has a host or port"),
        ("postgresql://a/x mysql://u:s3cret@b/x", "place 2 of the list is for 'mysql'"),
        ("s3cret postgresql://a/x", "place 1 of the list has no scheme"),
    ],
)
def test_an_error_names_the_place_and_no_secret(text: str, message: str) -> None:
    with pytest.raises(InvalidDatabaseURL, match=message) as caught:
        resolve_database(text, environ={})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://a/x postgresql://b/x postgresql://a:5432/x",
        "postgresql://ann@a/x postgresql:///y postgres://ben:pw@a/x?sslmode=require",
    ],
)
def test_one_database_twice_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="places 1 and 3 of the list"):
        resolve_database(text, environ={})


def test_what_is_of_one_database_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--data is for one database"):
        resolve_database(TWO, Path("here"), {})
    for given in (Connecting(listen_url="postgresql://l/x"), Connecting(read_url="postgres://r/x")):
        with pytest.raises(ConfigurationError, match="DATABASE_URL is for one database"):
            resolve_database(TWO, environ={}, connecting=given)
    environment = {"HOLDFAST_DATABASE_URL": TWO, "HOLDFAST_LISTEN_DATABASE_URL": "postgres://l/x"}
    with pytest.raises(ConfigurationError, match="LISTEN_DATABASE_URL is for one database"):
        resolve_database(environ=environment)


def test_there_are_at_most_64() -> None:
    many = [f"postgresql://a/shop_{number}" for number in range(65)]
    assert len(resolve_database(" ".join(many[:64]), environ={}).shards) == 64
    with pytest.raises(ConfigurationError, match="65 databases are named"):
        resolve_database(" ".join(many), environ={})


def test_the_workers_of_a_command_are_told_all() -> None:
    assert Settings(database=TWO).environment()["HOLDFAST_DATABASE_URL"] == TWO
