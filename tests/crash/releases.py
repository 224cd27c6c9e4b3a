"""Two releases of one app, whose workers run side by side while it is deployed."""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast import App, Context, current_step
from tests.crash.workload import Effect, leave_trace

STEPS: Final = {1: 3, 2: 5}  # of a run, by its version


def release(version: int) -> App:
    """Return the app as it was released with this version of its workflow, and with no other."""
    app = App("crash")

    @app.step
    async def act(place: str) -> Effect:
        """Have an effect, with a pause on either side for kills to land in."""
        await asyncio.sleep(0.01)
        step = current_step()
        effect = leave_trace(place, step.idempotency_key, step.attempt)
        await asyncio.sleep(0.01)
        return effect

    @app.workflow(name="upgraded", version=version)
    async def upgraded(ctx: Context, n: int) -> list[str]:
        """Do more steps in the later version, with a sleep between them."""
        nonces: list[str] = []
        for i in range(STEPS[version]):
            effect = await act(f"version {version} {n} {i}")
            nonces.append(effect["nonce"])
            await asyncio.sleep(0.03)
        return nonces

    return app
