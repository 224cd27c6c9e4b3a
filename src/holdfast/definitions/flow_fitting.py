"""Tell values that once fitted a flow's step from those that never did.

Nothing records if a value fits the steps after it: the database brings it from one to the other. So
this goes by who made it. A worker checks what it makes against its own code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.definitions.flow_maps import tolerates
from holdfast.definitions.flow_parameters import RUN, Misfit
from holdfast.types import FlowStepState, StepShape


def may_have_fitted(
    steps: Sequence[StepShape],
    step: StepShape,
    misfits: Sequence[Misfit],
    states: Mapping[str, FlowStepState],
    *,
    worker: str,
    since: int,
) -> bool:
    """Return True if what does not fit a step now may have fitted the code of its maker.

    `steps` are those of the flow and `states` those of the run, by name. They are looked at with
    the code of `worker`, which began at `since`. What does not fit may have fitted,

    - of an output, if another worker has made it. Of a map and of a run, whose maker is not known,
      if it is not of the type that its step declares: no worker with this code would have let it
      pass. So it is with an element of an output if the map tolerates failures: it looks at its
      elements by their types.
    - of the run's input, which a client may send unchecked, if another worker has completed a step
      that takes it; or any step, if it is not of the type that the flow declares: so the run had
      begun. Of an element of it, if its map had begun before this worker did, and it is not of that
      type.
    """
    of_run = any(each.source.slug == RUN for each in misfits)
    is_wrong = any(not each.fits_source for each in misfits)
    if step.kind == "map" and (of_run or tolerates(step)):
        began_at = states[step.slug].started_at if of_run else None
        return is_wrong and (began_at or 0) < since
    if step.kind == "map" and is_wrong:
        return True
    if any(each.source.slug == RUN and not each.fits_source for each in misfits):
        known = [each.worker for each in states.values() if each.status == "completed"]
        if any(each not in (None, worker) for each in known):
            return True
    return any(
        _is_of_another(states.get(maker), each, worker)
        for each in misfits
        for maker in _makers(steps, each)
    )


def _is_of_another(maker: FlowStepState | None, misfit: Misfit, worker: str) -> bool:
    """Return True if another worker has completed a step that made, or took, a value."""
    if maker is None or maker.status != "completed":
        return False
    return maker.worker != worker if maker.worker else not misfit.fits_source


def _makers(steps: Sequence[StepShape], misfit: Misfit) -> list[str]:
    """Return the step that made a value; of the run's input, those that take it."""
    if misfit.source.slug != RUN:
        return [misfit.source.slug]
    return [
        each.slug
        for each in steps
        if each.wants_run or (not each.deps and (each.kind == "map" or each.runs))
    ]
