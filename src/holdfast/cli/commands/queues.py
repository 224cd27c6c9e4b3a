"""`holdfast queues`: which there are, and pausing them."""

from __future__ import annotations

from holdfast.cli.commands.pausable import Words, pausable_group

queues = pausable_group(
    "queue",
    Words(
        list="List the queues that live workers serve, that are paused, or that tasks wait in.",
        pause="Let no worker begin anything of these queues.",
        pausing="What runs already is not disturbed.",
        resume="Let workers go on with these queues.",
        name="mail",
        reason="the mail server is down",
    ),
)
