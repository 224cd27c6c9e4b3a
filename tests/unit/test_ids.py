"""Identifiers of runs."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import RFC_4122, UUID

import pytest

from holdfast.values.ids import keyed_run_id, uuid7


def test_a_new_id_is_a_version_7_uuid_of_this_moment() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7()
    assert (made.version, made.variant) == (7, RFC_4122)
    assert before <= made.int >> 80 <= time.time_ns() // 1_000_000 + 1


def test_ids_of_a_process_increase() -> None:
    ids = [uuid7() for _ in range(20_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_ids_increase_when_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 21."""
    first = uuid7()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert uuid7() > first


def test_threads_never_make_the_same_id() -> None:
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda _: [uuid7() for _ in range(2_000)], range(8)))
    assert len({made for batch in batches for made in batch}) == 16_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_makes_other_ids() -> None:
    uuid7()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"".join(uuid7().bytes for _ in range(100)))
        os._exit(0)
    mine = {uuid7() for _ in range(100)}
    os.waitpid(child, 0)
    written = os.read(reader, 1600)
    theirs = {UUID(bytes=written[start : start + 16]) for start in range(0, 1600, 16)}
    assert not mine & theirs
    # Not even the same counters a moment apart.
    low = (1 << 62) - 1
    assert not {made.int & low for made in mine} & {made.int & low for made in theirs}


def test_a_key_determines_the_run_id() -> None:
    """B5."""
    made = keyed_run_id("checkout", "größe-1")
    digest = hashlib.sha256(b"checkout\0gr\xc3\xb6\xc3\x9fe-1").digest()
    assert made == keyed_run_id("checkout", "größe-1")
    assert (made.version, made.variant) == (8, RFC_4122)
    assert made.bytes[0] == 0xFF
    assert made.bytes[1:6] == digest[1:6]
    assert made.bytes[9:] == digest[9:16]


def test_a_name_and_a_key_are_kept_apart_in_the_id() -> None:
    assert keyed_run_id("a", "bc") != keyed_run_id("ab", "c")
