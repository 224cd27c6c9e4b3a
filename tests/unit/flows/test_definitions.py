"""Flows as they are defined: graphs, names, options, and what is refused. P2, P3, P10."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import App
from holdfast.definitions import Flow
from holdfast.definitions.flow_steps import FlowStep
from holdfast.errors import ConfigurationError, InvalidInput, InvalidName
from holdfast.types import FlowShape, StepShape


@dataclass
class Site:
    url: str


@dataclass
class Page:
    content: str
    links: list[str]


app = App("shop")
analyze = app.flow("analyze_website", input=Site, attempts=2, base_delay="2s", timeout="1m")


@analyze.step
async def website(run: Site) -> Page:
    return Page(run.url, ["a", "b"])


@analyze.step(attempts=5, timeout="30s", queue="gpu", start_delay=1)
async def sentiment(page: Page = website.output) -> float:
    return len(page.content) / 2


@analyze.step
def links(website: Page) -> list[str]:
    return website.links


@analyze.map(links, on_exhausted="skip")
async def fetched(url: str) -> Page:
    return Page(url, [])


@analyze.map(fetched)
def words(page: Page) -> int:
    return len(page.content)


@analyze.step(name="saved", when={"sentiment": 1.0}, on_unmet="skip-cascade")
def save(
    score: float = sentiment.output,
    fetched: list[Page] | None = None,
    run: Site = analyze.run.output,
) -> bool:
    return score > len(fetched or []) and bool(run.url)


def empty() -> Flow[Any]:
    """Make a flow with the steps `page`, `pages` and, perhaps skipped, `maybe`."""
    flow = App("tests").flow("empty")

    @flow.step
    def page(run: Any) -> Page: ...

    @flow.step
    def pages(page: Page) -> list[Page]: ...

    @flow.step(on_exhausted="skip")
    def maybe(run: Any) -> str: ...

    return flow


def test_the_shape_has_the_steps_in_order_with_what_they_depend_on() -> None:
    assert analyze.shape == FlowShape(
        name="shop/analyze_website",
        max_attempts=2,
        base_delay=2,
        timeout=60,
        steps=(
            StepShape(slug="website", wants_run=True),
            StepShape(
                slug="sentiment",
                deps=("website",),
                max_attempts=5,
                timeout=30,
                queue="gpu",
                start_delay=1,
            ),
            StepShape(slug="links", deps=("website",)),
            StepShape(slug="fetched", kind="map", deps=("links",), when_exhausted="skip"),
            StepShape(slug="words", kind="map", deps=("fetched",)),
            StepShape(
                slug="saved",
                deps=("sentiment", "fetched"),
                wants_run=True,
                required='{"sentiment":1}',
                when_unmet="skip-cascade",
            ),
        ),
    )


def test_a_flow_has_its_names_and_defaults() -> None:
    assert (analyze.full_name, analyze.handler) == (
        "shop/analyze_website",
        "shop/analyze_website@1",
    )
    assert (analyze.retention_seconds, analyze.timeout_seconds) == (30 * 86400, None)
    assert analyze.priority == 2
    assert list(analyze.steps) == ["website", "sentiment", "links", "fetched", "words", "saved"]
    assert analyze.steps["website"] is website


def test_an_app_serves_its_flows_and_the_queues_of_their_steps() -> None:
    assert app.handlers() == ("shop/analyze_website@1",)
    assert app.queues() == ("default", "gpu")
    assert dict(app.flows) == {("analyze_website", 1): analyze}


def test_a_root_map_runs_over_the_input_and_does_not_want_it_besides() -> None:
    flow = App("tests").flow("many", input=list[int])

    @flow.map(flow.run)
    def double(number: int) -> int:
        return 2 * number

    assert flow.shape.steps == (StepShape(slug="double", kind="map"),)


def test_two_parameters_may_take_one_step() -> None:
    flow = empty()

    @flow.step
    def both(page: Page, same: Page = flow.steps["page"].output) -> None: ...  # type: ignore[assignment]

    assert both.deps == ("page",)
    assert both.decode_arguments('{"page": {"content": "", "links": []}}') == (
        (),
        {"page": Page("", []), "same": Page("", [])},
    )


async def test_calling_a_step_calls_its_function() -> None:
    page = await website(Site("abcd"))
    assert page == Page("abcd", ["a", "b"])
    assert await sentiment(page) == 2
    assert await links(page) == ["a", "b"]
    assert await fetched("u") == Page("u", [])


def test_the_own_options_of_a_step_come_before_those_of_its_flow() -> None:
    assert (sentiment.timeout_seconds, sentiment.queue) == (30, "gpu")
    assert (website.timeout_seconds, website.queue) == (60, None)


@pytest.mark.parametrize("name", ["a b", "1a", "ä", "a:b", "", "a" * 129, "a\n", 3, "a-b"])
def test_a_name_outside_of_what_the_database_allows_is_refused(name: Any) -> None:
    """P2."""
    with pytest.raises(InvalidName, match="is a letter or '_', then up to 127 of"):
        App("tests").flow(name)
    with pytest.raises(InvalidName, match=r"flow empty: step: .* is not a name for a step"):
        empty().step(name=name)(lambda: None)


def test_the_name_run_is_reserved_for_the_input() -> None:
    """P2."""

    def run() -> None: ...

    with pytest.raises(InvalidName, match=r"'run' is not a name .* reserved"):
        empty().step(run)
    assert App("tests").flow("run").name == "run"
    assert empty().step(name="a" * 128)(lambda: None).slug == "a" * 128


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"base_delay": 1.5}, r"base_delay: times of a flow are whole seconds, not 1.5"),
        ({"timeout": "1500ms"}, "timeout: times of a flow are whole seconds, not '1500ms'"),
        ({"timeout": 0}, "timeout: 1 to 2,147,483,647 seconds are possible, not 0"),
        ({"base_delay": "9000w"}, "base_delay: 0 to 2,147,483,647 seconds are possible"),
        ({"attempts": 0}, "attempts: a whole number from 1 to 2,147,483,647 is needed, not 0"),
        ({"attempts": 1.5}, "attempts: a whole number"),
        ({"queue": "a b"}, "queue: 'a b' is not a name for a queue"),
    ],
)
def test_an_option_that_cannot_work_is_named(options: Mapping[str, Any], refusal: str) -> None:
    """P3."""
    with pytest.raises(ConfigurationError, match=f"flow bad: {refusal}"):
        App("tests").flow("bad", **options)
    with pytest.raises(ConfigurationError, match=f"step one of flow empty: {refusal}"):
        empty().step(name="one", **options)(lambda: None)


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"version": 0}, "version: a whole number from 1 to"),
        ({"priority": 9}, "priority: a whole number from 0 to 4"),
        ({"retention": "x"}, "retention: not a duration"),
        ({"run_timeout": 0}, "run_timeout: a limit of 0 s lets nothing run"),
    ],
)
def test_an_option_of_runs_that_cannot_work_is_named(
    options: Mapping[str, Any], refusal: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"flow bad: {refusal}"):
        App("tests").flow("bad", **options)


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"on_unmet": "ignore"}, "on_unmet: fail, skip or skip-cascade is needed, not 'ignore'"),
        ({"on_exhausted": None}, "on_exhausted: fail, skip or skip-cascade is needed, not None"),
        ({"start_delay": 0.5}, "start_delay: times of a flow are whole seconds"),
        ({"when": [1]}, r"when: a dictionary is needed, not \[1\]"),
        ({"when": {1: 2}}, "when: a dictionary whose keys are text is needed, not {1: 2}"),
        ({"when": {"page": float("nan")}}, r"when: \$\.page: JSON has no NaN"),
        ({"jitter": float("nan")}, "jitter: 0 to 1 in hundredths is needed, not nan"),
        ({"jitter": "20%"}, "jitter: 0 to 1 in hundredths is needed, not '20%'"),
        ({"unless": {"pgae": 1}}, "unless: 'pgae' is not given to this step.* run, page"),
    ],
)
def test_an_option_of_a_step_that_cannot_work_is_named(
    options: Mapping[str, Any], refusal: str
) -> None:
    def one(page: Page) -> None: ...

    with pytest.raises(ConfigurationError, match=f"step one of flow empty: {refusal}"):
        empty().step(**options)(one)


def test_conditions_on_the_input_do_not_send_it_to_the_step() -> None:
    flow = empty()

    @flow.step(when={"run": {"kind": "x"}}, unless={"page": {}})
    def one(page: Page) -> None: ...

    @flow.step(unless={"any": "thing"})
    def root() -> None: ...

    assert (one.shape.required, one.shape.forbidden) == ('{"run":{"kind":"x"}}', '{"page":{}}')
    assert not one.shape.wants_run
    assert root.shape.forbidden == '{"any":"thing"}'


def test_a_condition_of_a_root_step_is_about_the_input_itself() -> None:
    flow = App("tests").flow("site", input=Site)

    @flow.step(when={"url": "u"}, unless={"old": 1})
    def one() -> None: ...

    @empty().step(when={"run": {"a": 1}})
    def undeclared() -> None: ...

    def trap(run: Site) -> None: ...

    refusal = "step trap of flow site: when: for a step without .* Site has no field 'run'"
    with pytest.raises(ConfigurationError, match=refusal):
        flow.step(when={"run": {"url": "u"}})(trap)


def test_a_step_of_the_same_name_is_refused() -> None:
    flow = empty()
    with pytest.raises(ConfigurationError, match="step page of flow empty is defined twice"):
        flow.step(name="page")(lambda: None)


def test_a_version_is_defined_once_and_several_versions_stand_side_by_side() -> None:
    tests = App("tests")
    one = tests.flow("one")
    two = tests.flow("one", version=2)
    assert two.handler == "tests/one@2"
    assert two.of_version(1) is one
    assert (one.of_version(2), one.of_version(3)) == (two, None)
    with pytest.raises(ConfigurationError, match="flow one@2 is defined twice in app tests"):
        tests.flow("one", version=2)


def test_a_workflow_and_a_flow_of_one_name_are_refused() -> None:
    async def one(ctx: Any) -> None: ...

    first, second = App("tests"), App("tests")
    first.flow("one")
    with pytest.raises(ConfigurationError, match="a workflow and a flow with the name one"):
        first.workflow(one)
    second.workflow(one)
    with pytest.raises(ConfigurationError, match="a workflow and a flow with the name one"):
        second.flow("one")


def generator(run: Any) -> Any:
    yield run


def with_rest(*pages: Page) -> None: ...


def with_extra(**pages: Page) -> None: ...


def method(self: Any, page: Page) -> None: ...


@pytest.mark.parametrize(
    ("fn", "refusal"),
    [
        (generator, "is a generator"),
        (with_rest, "has the parameter .*pages.*: write one parameter for each step"),
        (with_extra, "has the parameter .*pages.*: write one parameter for each step"),
        (method, "is a method"),
    ],
)
def test_a_function_that_cannot_be_a_step_is_refused(
    fn: Callable[..., object], refusal: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"of flow empty {refusal}"):
        empty().step(fn)


def test_a_step_of_the_app_cannot_be_a_step_of_a_flow_too() -> None:
    @app.step
    def charge(run: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="step charge cannot be a step of a flow too"):
        empty().step(charge)


def test_inputs_and_outputs_have_their_declared_types() -> None:
    text = analyze.encode_input(Site("u"))
    assert (text, analyze.decode_input(text)) == ('{"url":"u"}', Site("u"))
    with pytest.raises(InvalidInput, match="input of flow analyze_website"):
        analyze.encode_input(3)
    with pytest.raises(InvalidInput, match="input of flow analyze_website"):
        analyze.decode_input("{}")
    assert analyze.decode_output('{"words": [1, 2], "saved": true}') == {
        "words": [1, 2],
        "saved": True,
    }
    assert analyze.decode_output('{"words": []}') == {"words": []}
    with pytest.raises(InvalidInput):
        analyze.decode_output('{"words": ["x"]}')
    with pytest.raises(InvalidInput, match="output of flow analyze_website"):
        analyze.decode_output("[]")


def test_outputs_of_steps_that_are_not_defined_here_are_plain_json() -> None:
    """A program that only starts runs may import the flow, but not the module with its steps."""
    output = '{"far": [1.5], "maybe": "x"}'
    assert empty().decode_output(output) == {"far": [1.5], "maybe": "x"}
    assert App("tests").flow("bare").decode_output(output) == {"far": [1.5], "maybe": "x"}


def test_without_a_declared_input_any_json_is_taken() -> None:
    flow = empty()
    assert flow.encode_input({"a": [1]}) == '{"a":[1]}'
    assert flow.encode_input() == "null"
    assert flow.decode_input("[1]") == [1]


def test_a_flow_draws_itself() -> None:
    assert analyze.to_mermaid().startswith('flowchart TD\n    run(["run"])\n    s0["website"]\n')


def test_a_step_is_compared_with_its_dependencies_and_not_with_all_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program may define a flow of ten thousand steps."""
    looks: list[str] = []

    def rule(step: Any) -> str:
        looks.append(step.name)
        return "none_failed"

    monkeypatch.setattr(FlowStep, "trigger_rule", property(rule, lambda *_: None), raising=False)
    flow = App("generated").flow("generated")
    last: Any = flow.run
    for number in range(50):

        async def take(last: Any = last.output) -> None: ...

        last = flow.step(name=f"s{number}")(take)
    counts = Counter(looks)
    assert len(counts) == 50
    assert max(counts.values()) < 10
