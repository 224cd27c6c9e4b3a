"""`holdfast approvals`: list the approvals that wait for a decision, and decide them."""

from __future__ import annotations

import getpass
import sys
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING
from uuid import UUID

import click

from holdfast.cli import exits
from holdfast.cli.answers import Answer, answer, call
from holdfast.cli.finding import find_run
from holdfast.cli.framework import Group, command, option, sources
from holdfast.cli.inputs import filled
from holdfast.cli.render.console import console
from holdfast.cli.render.hints import command_of
from holdfast.insight.wording import ago
from holdfast.values.moments import to_micros

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.cli.connecting import Link
    from holdfast.insight.approvals import OpenApproval


@click.group(
    "approvals",
    cls=Group,
    invoke_without_command=True,
    sources=sources(__name__, "list:list_approvals", "decide"),
    examples=(
        "holdfast approvals",
        "holdfast approvals decide refund/order-7",
        "holdfast approvals decide refund/order-7 --reject --feedback 'too late'",
    ),
)
@click.pass_context
def approvals(context: click.Context) -> None:
    """List the approvals that wait for a decision by a person, and decide them."""
    if context.invoked_subcommand is None:
        context.invoke(list_approvals)


@command(
    "list",
    examples=(
        "holdfast approvals list",
        "holdfast approvals list refund/order-7",
        "holdfast approvals list --json | jq -r '.[].title'",
    ),
)
@click.argument("reference", metavar="[RUN]", required=False)
@option("--limit N", "List at most N approvals.", type=click.IntRange(1, 10_000), default=100)
async def list_approvals(link: Link, reference: str | None, limit: int) -> Answer:
    """List the approvals that wait for a decision, with the command that decides each.

    The oldest comes first.
    """
    run = None if reference is None else (await find_run(link.client, reference)).run_id
    found, now = await link.client.approvals.list(run, limit), await link.store.now()
    return Answer(found, lambda: _write(found, now), none="no approval waits for a decision")


def _write(found: list[OpenApproval], now: int) -> None:
    output = console()
    for each in found:
        _write_approval(output, each, now)


_MOST = 1_000


@command(
    "decide",
    examples=(
        "holdfast approvals decide refund/order-7                 asks on a terminal",
        "holdfast approvals decide refund/order-7 --approve --set amount=12.5 --by ann",
        "holdfast approvals decide 3f9a review --reject --feedback 'the sum is wrong'",
    ),
)
@click.argument("reference", metavar="RUN")
@click.argument("key", metavar="[KEY]", required=False)
@option("--approve", "Approve it.")
@option("--reject", "Reject it.")
@option("--by NAME", "Who decides. Default: the user of this machine.", callback=filled)
@option("--feedback TEXT", "Why; the run's code can read it.")
@option(
    "--set NAME=VALUE...",
    "A value of the approval's form; may be repeated.",
    name="settings_of_fields",
)
@option(
    "--id ID", "Decide once, even if this id is sent again.", name="decision_id", callback=filled
)
def decide(
    reference: str,
    key: str | None,
    approve: bool,
    reject: bool,
    by: str | None,
    feedback: str | None,
    settings_of_fields: tuple[str, ...],
    decision_id: str | None,
) -> None:
    """Approve or reject what a run asks for. The first decision wins.

    KEY names the approval; it may be left out if the run waits for only one. On a terminal you
    are asked for what is missing: the decision, and the values of the form. Exit code 1 if it was
    decided before, or the run no longer waits for it.
    """
    if approve and reject:
        raise click.UsageError("give either --approve or --reject, not both")

    async def find(link: Link) -> tuple[_Asked, int]:
        return await _find(link, reference, key), await link.store.now()

    # There is no connection while the person decides.
    asked, now = call(find)
    decision, values = _fill(
        asked.approval, now, True if approve else False if reject else None, settings_of_fields
    )

    async def work(link: Link) -> Answer:
        changed = await link.client.approvals.decide(
            asked.run_id,
            asked.key,
            decision,
            by=by or _user(),
            feedback=feedback,
            values=values,
            decision_id=decision_id,
        )
        decided = "approved" if decision else "rejected"
        text = f"{asked.key} of run {asked.run_id} is {decided}"
        if not changed:
            text = "this decision was made before; nothing was changed"
        told = {"run_id": asked.run_id, "key": asked.key, "approved": decision, "changed": changed}
        return Answer(told, text)

    answer(work)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The approval to decide; `approval` is None if it is not open."""

    run_id: UUID
    key: str
    approval: OpenApproval | None


async def _find(link: Link, reference: str, key: str | None) -> _Asked:
    """Return the approval to decide. Raises Refusal if there is none, or more than one."""
    run_id = (await find_run(link.client, reference)).run_id
    found = {each.key: each for each in await link.client.approvals.list(run_id, _MOST)}
    if key is not None:
        return _Asked(run_id, key, found.get(key))
    if not found:
        raise exits.Refusal(
            f"run {run_id} does not wait for a decision; `holdfast runs show {run_id}` shows "
            "past ones",
            exits.NOT_FOUND,
        )
    if len(found) > 1:
        keys = ", ".join(map(quote, found))
        raise exits.Refusal(
            f"run {run_id} waits for several decisions: add one of {keys}", exits.USAGE
        )
    (only,) = found.values()
    return _Asked(run_id, only.key, only)


def _fill(
    approval: OpenApproval | None, now: int, approved: bool | None, texts: tuple[str, ...]
) -> tuple[bool, dict[str, object]]:
    """Return the decision and the values; on a terminal, ask for what was not given."""
    from holdfast.cli.forms import ask_for_values, read_values

    values = read_values(() if approval is None else approval.fields, texts)
    asks = approval is not None and _can_ask() and approved is not False
    if approved is None:
        if not asks:
            raise click.UsageError(
                "give --approve or --reject: without a terminal you cannot be asked"
            )
        _show(approval, now)
        approved = click.confirm("approve?", default=None, err=True)  # Enter asks again
    if asks and approved and approval is not None:
        values = ask_for_values(approval.fields, values)
    return approved, values


def _show(approval: OpenApproval | None, now: int) -> None:
    if approval is not None:
        _write_approval(console(), approval, now)


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have a user id without a name
        return None


def _write_approval(console: Console, approval: OpenApproval, now: int) -> None:
    """Write what is asked and by which run, the form, and the command that approves."""
    from rich.text import Text

    from holdfast.cli.forms import describe_field
    from holdfast.insight.approvals import decide_action

    asked = f"asked {ago(to_micros(approval.requested_at), now)}"
    if approval.timeout_at is not None:
        asked += f", times out {ago(to_micros(approval.timeout_at), now)}"
    console.print(Text(approval.title, "bold").append(f"  {asked}", "dim"), soft_wrap=True)
    if approval.description:
        console.print(Text(f"  {approval.description}"), soft_wrap=True)
    by = f"  {approval.workflow} run {approval.run_id}, approval {approval.key}"
    console.print(Text(by, "dim"), soft_wrap=True)
    for field in approval.fields:
        console.print(Text(f"  {describe_field(field)}"), soft_wrap=True)
    console.print(Text(f"  {command_of(decide_action(approval))}", "bold"), soft_wrap=True)
