"""An open approval as lines."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from holdfast.cli.forms import decide_command, describe_field
from holdfast.cli.wording import ago
from holdfast.client.approvals import OpenApproval
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
    console.print(Text(f"  {decide_command(approval)}", "bold"), soft_wrap=True)
