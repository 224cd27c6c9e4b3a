"""Readers of streams, as processes that are killed: each begins again where its notes end.

A reader writes down what it gets before it asks for more, so its notes are what a person has seen:
one reads by the client, the other server-sent events of `holdfast server`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypedDict
from uuid import UUID

import httpx
import msgspec

from holdfast import Client
from holdfast.errors import DatabaseUnavailable
from holdfast.types import Restarted
from tests.chaos.names import CALLER, STREAM

PAUSE_SECONDS = 0.1
SILENT_SECONDS = 40.0  # the server writes a comment each 15 s


class Note(TypedDict):
    """What a reader was told of a run: an `item`, that it `restarted`, or the `end`."""

    run: str
    what: str
    told: dict[str, Any]


Follow = Callable[[str, int], AsyncGenerator[tuple[str, dict[str, Any]]]]  # a run after an offset


class Away(Exception):
    """Ask again for the rest."""


def read_notes(path: Path) -> dict[str, list[Note]]:
    """Return what a reader has noted, by run, in its order."""
    notes: dict[str, list[Note]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        note: Note = json.loads(line)
        notes.setdefault(note["run"], []).append(note)
    return notes


def read(how: str, place: str, told: Path, notes: Path, redis: str) -> None:
    """Be a reader until killed. `place` is the database's URL, or the server's."""
    with notes.with_name(f"reader-{how}.log").open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    asyncio.run(_read(how, place, told, notes, redis))


async def _read(how: str, place: str, told: Path, notes: Path, redis: str) -> None:
    if how == "server":
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=place, limits=limits, timeout=SILENT_SECONDS) as http:
            await _follow_all(partial(by_server, http), told, notes)
    while True:
        with suppress(DatabaseUnavailable):  # when it connects
            async with Client(place, redis=redis or None) as client:
                await _follow_all(partial(by_client, client), told, notes)
        await asyncio.sleep(PAUSE_SECONDS)


async def _follow_all(follow: Follow, told: Path, path: Path) -> None:
    """Follow all runs that are told of, each to its end."""
    seen = read_notes(path)
    ended = {run for run, notes in seen.items() if notes[-1]["what"] == "end"}
    known = set(ended)
    notes = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    async with asyncio.TaskGroup() as group:
        while True:
            for run in told.read_text().splitlines():  # noqa: ASYNC240
                if run not in known:
                    known.add(run)
                    offsets = [
                        n["told"]["offset"] for n in seen.get(run, ()) if n["what"] == "item"
                    ]
                    group.create_task(_follow(follow, run, max(offsets, default=0), notes))
            await asyncio.sleep(0.05)


async def _follow(follow: Follow, run: str, after: int, notes: int) -> None:
    while True:
        with suppress(Away, DatabaseUnavailable):
            async for what, each in follow(run, after):
                line = json.dumps(Note(run=run, what=what, told=each)) + "\n"
                os.write(notes, line.encode())  # one write: whole or not at all
                if what == "item":
                    after = each["offset"]
                if what == "end":
                    return
        await asyncio.sleep(PAUSE_SECONDS)


async def by_client(
    client: Client, run: str, after: int
) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
    """Read by the client."""
    handle = client.handle(UUID(run))
    async for each in handle.stream_items(STREAM, type=str, after=after, restarts=True):
        yield ("restarted" if isinstance(each, Restarted) else "item"), msgspec.to_builtins(each)
    yield "end", {}


async def by_server(
    http: httpx.AsyncClient, run: str, after: int
) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
    """Read server-sent events, as a browser does."""
    headers = {**CALLER, **({"Last-Event-ID": str(after)} if after else {})}
    try:
        async with http.stream(
            "GET", f"/v1/runs/{run}/streams/{STREAM}/follow", headers=headers
        ) as answer:
            if answer.status_code in (429, 502, 503):
                raise Away
            if answer.status_code != 200:
                raise RuntimeError(f"{answer.status_code}: {await answer.aread()!r}")
            what = ""
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    what = value
                elif name == "data" and what != "bye":
                    yield what, json.loads(value)
    except httpx.TransportError as error:
        raise Away from error
