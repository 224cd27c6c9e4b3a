"""Look for signs that other code than that of this worker accepted what a step is given."""

from __future__ import annotations

from typing import Final

from holdfast.definitions.flow_fitting import may_have_fitted
from holdfast.definitions.flows import AnyFlowStep
from holdfast.definitions.workflows import AnyFlow
from holdfast.store.port import Store
from holdfast.types import ClaimedTask
from holdfast.worker.clock import Clock

UNFIT: Final = "let it accept what was recorded before, or roll the code back"


class Fitting:
    """What a worker knows of the values that do not fit its code; see `may_have_fitted`."""

    def __init__(self, store: Store, worker_id: str, clock: Clock) -> None:
        """Begin with the worker: what was there before it may be of other code."""
        self._store, self._worker_id, self._clock = store, worker_id, clock
        self._began = clock.local()

    async def has_fitted(self, flow: AnyFlow, step: AnyFlowStep, task: ClaimedTask) -> bool:
        """Return True if what does not fit a step now may have fitted other code.

        That is so after an attempt.
        """
        if task.attempts > 1:
            return True
        misfits = step.misfits(task.payload or "null")
        found = await self._store.flow_steps([task.run_id], outputs=False)
        states = {each.step: each for each in found.get(task.run_id, ())}
        return may_have_fitted(
            flow.shape.steps,
            step.shape,
            misfits,
            states,
            worker=self._worker_id,
            since=self._clock.now() - (self._clock.local() - self._began),
        )
