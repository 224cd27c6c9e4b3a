"""An open approval as lines."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from holdfast.cli.forms import describe_field
from holdfast.cli.render.actions import command_of
from holdfast.insight.approvals import OpenApproval, decide_action
from holdfast.insight.wording import ago
from holdfast.moments import to_micros


def write_approval(console: Console, approval: OpenApproval, now: int) -> None:
    """Write what is asked, by whom, the fields of the form, and the command that approves."""
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
