"""Code of an agent that changes under an open run: nothing recorded is paid again, or lost."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from pydantic import BaseModel

from holdfast import App, Context, Retry
from tests.agents.frameworks import (
    FRAMEWORKS,
    TIDES,
    WEATHER,
    Framework,
    Plan,
    ToolPlan,
    make,
    make_app,
)
from tests.agents.prefixes import Recorded, approve_all, do, effects, nobody


async def weather_of_a_day(city: str, day: str) -> str:
    raise NotImplementedError


async def weather(city: str) -> str:
    """Do the same by other code."""
    do()
    return f"sun in {city}".strip()


def answer_type(**fields: Any) -> type[BaseModel]:
    """Return a type of answers, always of the same name."""
    return type("Weather", (BaseModel,), {"__annotations__": {"city": str, **fields}})


PLAN: Final = Plan()
ASKED: Final = Plan(tools=(ToolPlan(WEATHER.function, "weather", asks=True), TIDES))


@dataclass(frozen=True)
class Change:
    """What changes, and what a run that is open says about it; None if it continues."""

    changes: dict[str, Any]
    stuck: str | None = None
    before: Plan = field(default_factory=lambda: PLAN)


OTHER: Final = r"support\.model' is a call of support\.model now, and a call of support\.model"
OTHER_REQUEST: Final = OTHER + " with other arguments in the log"

CHANGES: Final = {
    "instructions": Change({"instructions": "be rude"}, OTHER_REQUEST),
    "one tool more": Change(
        {"tools": (WEATHER, TIDES, ToolPlan(TIDES.function, "moon"))}, OTHER_REQUEST
    ),
    "one tool less": Change({"tools": (WEATHER,)}, OTHER_REQUEST),
    "without the tool that was called": Change({"tools": (TIDES,)}, OTHER_REQUEST),
    "name of a tool": Change({"tools": (ToolPlan(weather, "climate"), TIDES)}, OTHER_REQUEST),
    "description of a tool": Change(
        {"tools": (ToolPlan(weather, "weather", "Look out."), TIDES)}, OTHER_REQUEST
    ),
    "parameters of a tool": Change(
        {"tools": (ToolPlan(weather_of_a_day, "weather"), TIDES)}, OTHER_REQUEST
    ),
    "type of the answer": Change(
        {"output": answer_type(mood=(str | None))}, OTHER_REQUEST, Plan(output=answer_type())
    ),
    "name of the agent": Change({"name": "billing"}, r"support\.model.*billing\.model"),
    "order of the tools": Change({"tools": (TIDES, WEATHER)}),
    "code of a tool": Change({"tools": (ToolPlan(weather, "weather"), TIDES)}),
    "model": Change({"model": "another-model"}),
    "settings of the model": Change({"temperature": 0.9}),
    "how steps are tried": Change({"options": {"retry": Retry(attempts=2), "timeout": "9s"}}),
}


_recorded: Final[dict[tuple[str, int], Recorded]] = {}


async def record(framework: Framework, before: Plan, people: Any = nobody) -> Recorded:
    """Return a run of an agent that has ended. The same plan is recorded once."""
    place = framework, id(before)
    if (found := _recorded.get(place)) is None:
        app = make_app(framework, before)
        found = _recorded[place] = await Recorded(app, "once", "hello?", people).record()
    return copy.copy(found)


def ends(recorded: Recorded) -> list[int]:
    """Return how long the log is after each step."""
    return [
        place + 1 for place, event in enumerate(recorded.events) if event.type == "StepCompleted"
    ]


async def check(recorded: Recorded, length: int, stuck: str | None) -> None:
    """Continue a log with other code."""
    if stuck is None:
        assert await recorded.finish_from(length) == recorded.result
        assert effects == recorded.steps(recorded.events[length:])
        return
    with pytest.raises(AssertionError, match=rf"is stuck: .*{stuck}"):
        await recorded.finish_from(length)
    assert not effects, "nothing is paid while the run is stuck"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_an_open_run_of_an_agent_that_changed(framework: Framework, change: str) -> None:
    """It continues where nothing recorded depends on the change; else it is stuck, and says why.

    The code changes once while the tool is about to be called, and once before the last request.
    """
    case = CHANGES[change]
    recorded = await record(framework, case.before)
    recorded.app = make_app(framework, case.before.but(**case.changes))
    after_request, after_tool, _ = ends(recorded)
    await check(recorded, after_request, case.stuck)
    await check(recorded, after_tool, case.stuck)


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_people_are_not_asked_about_a_call_that_was_made(framework: Framework) -> None:
    recorded = await record(framework, PLAN)
    recorded.app = make_app(framework, ASKED)
    await check(recorded, ends(recorded)[1], r"support\.tool\.weather")


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_call_that_people_are_asked_about_is_not_made_without_them(
    framework: Framework,
) -> None:
    """Nor one that they have decided about: they may have said no."""
    recorded = await record(framework, ASKED, approve_all)
    recorded.app, recorded.people = make_app(framework, PLAN), nobody
    types = [event.type for event in recorded.events]
    for event in ("ApprovalRequested", "ApprovalResolved"):
        await check(recorded, types.index(event) + 1, r"support\.approve\.weather")


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_an_agent_that_begins_to_stream(framework: Framework) -> None:
    recorded = await record(framework, PLAN)
    recorded.app = make_app(framework, Plan(stream="words"))
    stuck = r"support\.model" if framework == "pydantic_ai" else None
    await check(recorded, ends(recorded)[1], stuck)


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_open_runs_keep_the_old_agent_if_the_code_says_so(framework: Framework) -> None:
    before, after = PLAN, Plan(instructions="be rude", tools=(WEATHER,))
    recorded = await record(framework, before)
    app, old, new = App("shop"), make(framework, before), make(framework, after)

    @app.workflow
    async def once(ctx: Context, question: str) -> str:
        return await (new if ctx.patched("rude") else old)(question)

    recorded.app = app
    for length in ends(recorded)[:2]:
        await check(recorded, length, None)
