"""`holdfast activities`: end activities from outside of their workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.answers import Answer
from holdfast.cli.framework import Group, command, option, sources
from holdfast.cli.inputs import json_of

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link


@click.group(
    "activities",
    cls=Group,
    sources=sources(__name__, "complete", "fail"),
    examples=(
        """holdfast activities complete "$TOKEN" '{"scanned": true}'""",
        """holdfast activities fail "$TOKEN" "the scanner is broken" """.strip(),
    ),
)
def activities() -> None:
    """End activities from outside, with the token of the attempt."""


@command(
    "complete",
    examples=(
        """holdfast activities complete "$TOKEN" '{"scanned": true}'""",
        """holdfast activities complete "$TOKEN" @result.json""",
    ),
)
@click.argument("token")
@click.argument("result", required=False, callback=json_of("result"))
async def complete(link: Link, token: str, result: object) -> Answer:
    """Complete an activity with RESULT.

    RESULT is JSON, @FILE, or - for stdin; the default is null. Exit code 4 if the attempt has
    ended, or a newer one has started.
    """
    await link.client.activities.complete(token, result)
    return Answer({"token": token, "outcome": "recorded"}, "completed")


@command(
    "fail",
    examples=(
        """holdfast activities fail "$TOKEN" "the scanner is broken" """.strip(),
        """holdfast activities fail "$TOKEN" "no such page" --final""",
    ),
)
@click.argument("token")
@click.argument("message")
@option("--final", "Do not retry the activity, whatever its retry policy says.")
async def fail(link: Link, token: str, message: str, final: bool) -> Answer:
    """Fail an attempt of an activity with MESSAGE.

    The activity is tried again as its retry policy says. Exit code 4 if the attempt has ended,
    or a newer one has started.
    """
    again = await link.client.activities.fail(token, message, retryable=not final)
    text = "failed; it is tried again" if again else "failed; it is not tried again"
    return Answer({"token": token, "outcome": "retried" if again else "recorded"}, text)
