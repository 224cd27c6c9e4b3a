"""The demo's proof as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.demo.proof import Proof

if TYPE_CHECKING:
    from rich.table import Table


def proof_table(proofs: Sequence[Proof]) -> Table:
    """Set the log against the outside world, a row a step."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("step", no_wrap=True)
    table.add_column("in the log", justify="right")
    table.add_column("asked for", justify="right")
    table.add_column("happened", justify="right")
    table.add_column("")
    for proof in proofs:
        verdict = "[green]once[/green]" if proof.holds else "[bold red]differs[/bold red]"
        if proof.interrupted:
            verdict += f" [dim]({proof.interrupted} attempt cut off by the kill)[/dim]"
        table.add_row(
            proof.step, str(proof.recorded), str(proof.asked), str(proof.happened), verdict
        )
    return table
