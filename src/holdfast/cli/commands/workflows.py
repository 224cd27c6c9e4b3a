"""`holdfast workflows`: which there are, and pausing them."""

from __future__ import annotations

from holdfast.cli.commands.pausable import Words, pausable_group

workflows = pausable_group(
    "workflow",
    Words(
        list="List the workflows that live workers serve, that are paused, or that runs wait for.",
        pause="Let no worker begin a turn of these workflows' runs, of any version.",
        pausing="A run that a worker holds goes on until it waits.",
        resume="Let the runs of these workflows go on.",
        name="checkout",
        reason="wrong prices",
    ),
)
