"""Tell values that once fitted a flow's step from those that never did.

Nothing records if a value fits the steps after it: the database brings it from one to the other. So
this goes by who made it. A worker checks what it makes against its own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.definitions.flow_parameters import RUN, Misfit
from holdfast.definitions.flows import AnyFlowStep
from holdfast.definitions.workflows import AnyFlow
from holdfast.store.port import Store
from holdfast.types import ClaimedTask, FlowStepState, StepShape
from holdfast.worker.clock import Clock

UNFIT: Final = "let it accept what was recorded before, or roll the code back"


class Fitting:
    """Look for signs that other code than that of this worker accepted what a step is given."""

    def __init__(self, store: Store, worker_id: str, clock: Clock) -> None:
        """Begin with the worker: what was there before it may be of other code."""
        self._store, self._worker_id, self._clock = store, worker_id, clock
        self._began = clock.local()

    async def has_fitted(self, flow: AnyFlow, step: AnyFlowStep, task: ClaimedTask) -> bool:
        """Return True if what does not fit a step now may have fitted the code of its maker.

        That is so after an attempt; and before the first one

        - of an output, if another worker has made it. Of a map, of an element, and of a run, whose
          maker is not known, if it is not of the type that its step declares: no worker with this
          code would have let it pass.
        - of the run's input, which a client may send unchecked, if another worker has completed a
          step that takes it; or any step, if it is not of the type that the flow declares: so the
          run had begun. Of an element of it, if its map had begun before this worker did, and it is
          not of that type.
        """
        if task.attempts > 1:
            return True
        misfits = step.misfits(task.payload or "null")
        if step.is_map and RUN not in [each.source.slug for each in misfits]:
            return any(not each.fits_source for each in misfits)
        found = await self._store.flow_steps([task.run_id], outputs=False)
        states = {each.step: each for each in found.get(task.run_id, ())}
        if step.is_map:
            began_at = states[step.slug].started_at or 0
            return began_at < self._since and any(not each.fits_source for each in misfits)
        if any(each.source.slug == RUN and not each.fits_source for each in misfits):
            known = [each.worker for each in states.values() if each.status == "completed"]
            if any(worker not in (None, self._worker_id) for worker in known):
                return True
        return any(
            self._is_of_another(states.get(maker), each)
            for each in misfits
            for maker in _makers(flow.shape.steps, each)
        )

    @property
    def _since(self) -> int:
        """When the worker began, in engine time."""
        return self._clock.now() - (self._clock.local() - self._began)

    def _is_of_another(self, maker: FlowStepState | None, misfit: Misfit) -> bool:
        """Return True if another worker has completed a step that made, or took, a value."""
        if maker is None or maker.status != "completed":
            return False
        return maker.worker != self._worker_id if maker.worker else not misfit.fits_source


def _makers(steps: Sequence[StepShape], misfit: Misfit) -> list[str]:
    """Return the step that made a value; of the run's input, those that take it."""
    if misfit.source.slug != RUN:
        return [misfit.source.slug]
    return [
        each.slug
        for each in steps
        if each.wants_run or (not each.deps and (each.kind == "map" or each.runs))
    ]
