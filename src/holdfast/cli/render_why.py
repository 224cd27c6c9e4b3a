"""An explanation as lines."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from holdfast.cli.explanation import Explanation
from holdfast.cli.hints import spelled
from holdfast.cli.render_runs import STYLES
from holdfast.cli.render_traceback import write_traceback


def write_explanation(console: Console, explanation: Explanation) -> None:
    """Write what is so, its details, and the commands that would move the run."""
    state = Text(explanation.state.replace("_", " "), STYLES.get(explanation.state, ""))
    console.print(state.append(": ", "").append(explanation.because, "default"), soft_wrap=True)
    for detail in explanation.details:
        console.print(Text(f"  {detail}"), soft_wrap=True)
    write_traceback(console, explanation.traceback)
    if explanation.commands:
        console.print(Text("what would move it:", "dim"))
        for command in explanation.commands:
            console.print(Text(f"  {spelled(command)}", "bold"), soft_wrap=True)
