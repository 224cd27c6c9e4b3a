"""`holdfast activities`: end activities from outside of their workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.framework import Group, command
from holdfast.cli.inputs import read_json
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link

_HERE = "holdfast.cli.commands.activities"


@click.group(
    "activities",
    cls=Group,
    sources={"complete": f"{_HERE}:complete", "fail": f"{_HERE}:fail"},
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
@click.argument("result", required=False)
@click.pass_context
def complete(context: click.Context, token: str, result: str | None) -> None:
    """Complete an activity with RESULT.

    RESULT is JSON, @FILE, or - for stdin; the default is null. Exit code 4 if the attempt has
    ended, or a newer one has started.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.render.console import decoded, write_json

    settings = settings_of(context)
    value = decoded(read_json(result, "result"))

    async def work(link: Link) -> None:
        await link.client.activities.complete(token, value)

    with_link(settings, work)
    if settings.json:
        write_json({"token": token, "outcome": "recorded"})
    else:
        click.echo("completed")


@command(
    "fail",
    examples=(
        """holdfast activities fail "$TOKEN" "the scanner is broken" """.strip(),
        """holdfast activities fail "$TOKEN" "no such page" --final""",
    ),
)
@click.argument("token")
@click.argument("message")
@click.option(
    "--final", is_flag=True, help="Do not retry the activity, whatever its retry policy says."
)
@click.pass_context
def fail(context: click.Context, token: str, message: str, final: bool) -> None:
    """Fail an attempt of an activity with MESSAGE.

    The activity is tried again as its retry policy says. Exit code 4 if the attempt has ended,
    or a newer one has started.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.render.console import write_json

    settings = settings_of(context)

    async def work(link: Link) -> bool:
        return await link.client.activities.fail(token, message, retryable=not final)

    again = with_link(settings, work)
    if settings.json:
        write_json({"token": token, "outcome": "retried" if again else "recorded"})
    else:
        click.echo("failed; it is tried again" if again else "failed; it is not tried again")
