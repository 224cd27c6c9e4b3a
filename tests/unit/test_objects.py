"""Objects in a folder and in a server that speaks S3: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import ConfigurationError, ObjectsUnavailable
from holdfast.objects import Objects, check_objects_url, open_objects


@pytest.fixture(params=["folder", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    """Return each kind of place for objects in turn, empty."""
    if request.param == "folder":
        return open_objects(f"file://{tmp_path}/some%20where")
    return open_objects(f"{request.getfixturevalue('s3_bucket')}/{tmp_path.name}")


async def test_an_object_comes_back_as_it_was_put(objects: Objects) -> None:
    assert await objects.get("a/b.bin") is None
    assert await objects.get("a/b.bin", 0, 5) is None
    data = bytes(range(256)) * 4
    await objects.put("a/b.bin", data)
    assert await objects.get("a/b.bin") == data
    assert await objects.get("a/b.bin", 10, 7) == data[10:17]
    await objects.put("a/b.bin", b"other")
    assert await objects.get("a/b.bin") == b"other"


async def test_names_are_listed_in_order_below_a_prefix(objects: Objects) -> None:
    assert [name async for name in objects.names("a/")] == []
    for name in ("a/2/x", "a/1", "b/1", "ab/1"):
        await objects.put(name, b"")
    assert [name async for name in objects.names("a/")] == ["a/1", "a/2/x"]
    await objects.delete("a/1")
    await objects.delete("a/1")
    assert [name async for name in objects.names("a/")] == ["a/2/x"]


async def test_a_file_that_was_not_finished_is_no_object(tmp_path: Path) -> None:
    """S16. What a process left behind that was killed while it wrote."""
    objects = open_objects(f"file://{tmp_path}")
    await objects.put("a/1", b"1")
    left = tmp_path / "a/.partial-0123"
    left.write_bytes(b"half")
    assert [name async for name in objects.names("a/")] == ["a/1"]
    os.utime(left, (0, 0))  # nobody writes it any more
    for name in [name async for name in objects.names("a/")]:
        await objects.delete(name)
    assert os.listdir(tmp_path) == []


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    objects = open_objects(f"file://{tmp_path}/file/below")
    with pytest.raises(ObjectsUnavailable, match=r"file/below cannot be used: .*Not a directory"):
        await objects.put("a", b"")


async def test_a_bucket_that_is_not_there_is_named(s3_bucket: str) -> None:
    objects = open_objects("s3://nowhere/x")
    with pytest.raises(ObjectsUnavailable, match="s3://nowhere/x cannot be used"):
        await objects.put("a", b"")


@pytest.mark.parametrize(
    "url", ["", "folder", "/folder", "file://", "file://host/x", "s3://", "https://host/x"]
)
def test_a_url_that_names_no_place_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="file:///"):
        check_objects_url(url)


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="credentials come from the environment") as caught:
        check_objects_url("s3://me:secret@bucket/x")
    assert "secret" not in str(caught.value)


def test_a_slash_at_the_end_makes_no_difference() -> None:
    assert check_objects_url("s3://bucket/x/") == "s3://bucket/x"
