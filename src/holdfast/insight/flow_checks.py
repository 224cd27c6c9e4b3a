"""Check the recorded values of flows' runs against the code at hand, before a deploy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.codec import check_open
from holdfast.definitions.flow_fitting import may_have_fitted
from holdfast.definitions.flow_maps import tolerates
from holdfast.definitions.flow_parameters import RUN, Misfit
from holdfast.definitions.flows import AnyFlowStep
from holdfast.definitions.workflows import AnyFlow, Registry
from holdfast.errors import PayloadError
from holdfast.runtime.loop.user_code import line_of_definition
from holdfast.runtime.turn.rehearsal import Difference
from holdfast.store.port import Store
from holdfast.types import FlowStepState, RunRecord

_LATER: Final = 2**63 - 1  # in engine time: the worker that the code will have begins after all
_PAGE: Final = 20  # runs, whose outputs are read in one call
_read_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


async def flow_differences(
    store: Store, registry: Registry, runs: Sequence[RunRecord]
) -> AsyncIterator[tuple[RunRecord, Difference | str | None]]:
    """Yield open runs of flows with how what they have recorded differs from the code.

    None if it fits, a text if a run cannot be checked.
    """
    for place in range(0, len(runs), _PAGE):
        page = runs[place : place + _PAGE]
        ids = [run.run_id for run in page]
        try:
            records, steps = await store.get_runs(ids), await store.flow_steps(ids)
        except PayloadError as error:
            if len(page) == 1:
                yield page[0], str(error)
                continue
            for run in page:
                async for found in flow_differences(store, registry, [run]):
                    yield found
            continue
        for run_id, run in records.items():
            flow, known = registry.flows[(run.name, run.version)], steps.get(run_id, ())
            try:
                check_open([run.input, *(each.output for each in known)])
                yield run, _difference(flow, run, known)
            except PayloadError as error:
                yield run, str(error)
            except Exception as error:  # one run must not keep the others from being checked
                yield run, f"it cannot be checked: {error!r}"


def _difference(flow: AnyFlow, run: RunRecord, steps: Sequence[FlowStepState]) -> Difference | None:
    """Return how the code of a step differs from what it is to be given, None for no step.

    One that would be held comes before one that would fail.
    """
    found = _differences(flow, run, {each.step: each for each in steps})
    return min(found, key=lambda each: each.kind == "fails", default=None)


def _differences(
    flow: AnyFlow, run: RunRecord, states: Mapping[str, FlowStepState]
) -> Iterator[Difference]:
    """Yield the steps that have not ended, and whose code does not fit what is recorded for them.

    Those that a condition may still skip are left out, and so are steps that are runs.
    """
    for slug, step in flow.steps.items():
        state = states.get(slug)
        if state is None or state.status not in ("created", "started"):
            continue
        has_condition = (step.shape.required, step.shape.forbidden) != (None, None)
        if has_condition and state.status == "created":
            continue
        found = _of_map(step, state, run, states) if step.is_map else _of_one(step, run, states)
        if found is None:
            continue
        error, misfits = found
        line = line_of_definition(step.fn)
        if (state.attempts or 0) > 0 or may_have_fitted(
            flow.shape.steps, step.shape, misfits, states, worker="", since=_LATER
        ):
            text = f"{step} has not ended, and what it is given does not fit its code, so no "
            yield Difference("held", f"{text}attempt begins: {error}", None, line)
        elif not tolerates(step.shape):
            text = f"{step} has not ended, and would fail at its next attempt: {error}"
            yield Difference("fails", text, None, line)


def _of_one(
    step: AnyFlowStep, run: RunRecord, states: Mapping[str, FlowStepState]
) -> tuple[Exception, list[Misfit]] | None:
    """Return why what is recorded so far does not fit a single step, None if it does."""
    given = {dep: states[dep].output for dep in step.deps if dep in states}
    if step.shape.wants_run:
        given[RUN] = run.input or "null"
    payload = {slug: msgspec.Raw(text.encode()) for slug, text in given.items() if text is not None}
    text = msgspec.json.encode(payload).decode()
    error = _error_of(step, text)
    return None if error is None else (error, step.misfits(text))


def _of_map(
    step: AnyFlowStep, state: FlowStepState, run: RunRecord, states: Mapping[str, FlowStepState]
) -> tuple[Exception, list[Misfit]] | None:
    """Return why an element of a map that has not ended does not fit, None if none is known."""
    over = states.get(step.deps[0]) if step.deps else None
    text = run.input if not step.deps else None if over is None else over.output
    if text is None:
        return None
    elements = [bytes(each).decode() for each in _read_list(text)]
    errors = [(each, error) for each in elements if (error := _error_of(step, each)) is not None]
    ended = (state.initial_tasks or 0) - (state.remaining_tasks or 0)
    if len(errors) <= ended:  # these may be the elements that have ended
        return None
    return errors[0][1], [misfit for each, _ in errors for misfit in step.misfits(each)]


def _error_of(step: AnyFlowStep, text: str) -> Exception | None:
    try:
        step.decode_arguments(text)
    except Exception as error:  # of the user's types, of any kind
        return error
    return None
