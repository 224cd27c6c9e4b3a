"""An explanation as lines."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from holdfast.cli.hints import spelled
from holdfast.cli.render.actions import command_of
from holdfast.cli.render_runs import STYLES
from holdfast.cli.render_traceback import write_traceback
from holdfast.insight.why.explanation import Explanation


def write_explanation(console: Console, explanation: Explanation) -> None:
    """Write what is so, its details, and the commands that would move the run."""
    state = Text(explanation.state.replace("_", " "), STYLES.get(explanation.state, ""))
    console.print(state.append(": ", "").append(explanation.because, "default"), soft_wrap=True)
    for detail in explanation.details:
        console.print(Text(f"  {detail}"), soft_wrap=True)
    write_traceback(console, explanation.traceback)
    if explanation.actions:
        console.print(Text("what would move it:", "dim"))
        for action in explanation.actions:
            command = spelled(command_of(action))
            console.print(Text(f"  {command}", "bold"), soft_wrap=True)
