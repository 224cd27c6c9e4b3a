"""What type checkers infer for flows, and what they refuse; checked with the package, never run.

P10.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_type

from holdfast import Context
from holdfast.client import Client, RunHandle
from holdfast.definitions import App, Flow, FlowStep
from holdfast.definitions.flow_context import FlowStepContext, current_flow_step

app = App("typed")


@dataclass
class Site:
    url: str


@dataclass
class Page:
    content: str
    links: list[str]


analyze = app.flow("analyze", input=Site, attempts=5, base_delay="5s", timeout=60, version=2)
untyped = app.flow("untyped")
many = app.flow("many", input=list[int])


@analyze.step
async def website(run: Site) -> Page:
    return Page(run.url, [])


@analyze.step(attempts=5, timeout="30s", queue="gpu", when={"website": {}}, on_unmet="fail")
async def sentiment(page: Page = website.output) -> float:
    assert_type(current_flow_step(), FlowStepContext)
    assert_type(current_flow_step().skipped(website), bool)
    return 0.5


@analyze.step
def links(website: Page) -> list[str]:
    return website.links


@analyze.map(links, on_exhausted="skip")
async def fetched(url: str) -> Page:
    return Page(url, [])


@analyze.map(fetched, name="words")
def count_words(page: Page) -> int:
    return len(page.content)


@analyze.step
def tags(website: Page) -> set[int]:
    return set()


@analyze.map(tags)
def tagged(tag: int) -> tuple[str, ...]:
    return ()


@analyze.map(tagged)
def wide(tag: Sequence[str]) -> Mapping[str, int]:
    return {}


@analyze.step(name="saved")
async def save(
    score: float = sentiment.output,
    counts: list[int] = count_words.output,
    pages: Sequence[Page] | None = fetched.output,
    run: Site = analyze.run.output,
) -> bool:
    return True


@many.map(many.run)
def double(number: int) -> int:
    return 2 * number


@untyped.step
def first(run, second=untyped.run.output):  # type: ignore[no-untyped-def]
    return 1


@untyped.map(untyped.run)
def each(element: str) -> None: ...


assert_type(analyze, Flow[Site])
assert_type(untyped, Flow[Any])
assert_type(many, Flow[list[int]])
assert_type(app.flow("union", input=int | None), Flow[Any])
assert_type(website.output, Page)
assert_type(sentiment.output, float)
assert_type(links.output, list[str])
assert_type(fetched, FlowStep[[str], Page, list[Page]])
assert_type(count_words.output, list[int])
assert_type(tagged.output, list[tuple[str, ...]])
assert_type(wide.output, list[Mapping[str, int]])
assert_type(save.output, bool)
assert_type(double.output, list[int])
assert_type(analyze.run.output, Site)
assert_type(analyze.shape.handler, str)


async def in_tests() -> None:
    page = await website(Site("u"))
    assert_type(page, Page)
    assert_type(await sentiment(page), float)
    assert_type(await links(page), list[str])
    assert_type(await fetched("u"), Page)
    assert_type(await save(0.5, [1]), bool)
    await website("u")  # type: ignore[arg-type]
    await save(scores=1)  # type: ignore[call-arg]
    await fetched(3)  # type: ignore[arg-type]


async def with_client(client: Client) -> None:
    handle = await client.start(analyze, Site("u"), key="k")
    assert_type(handle, RunHandle[dict[str, object]])
    assert_type(await handle.result(), dict[str, object])
    assert_type(await client.start(untyped, 3), RunHandle[dict[str, object]])
    await client.start(analyze, 3)  # type: ignore[misc]


async def in_a_workflow(ctx: Context) -> None:
    assert_type(await analyze(Site("u")), dict[str, object])
    assert_type(await untyped(), dict[str, object])
    assert_type(await ctx.child(analyze, Site("u"), key="k"), dict[str, object])
    handle = await ctx.start_child(analyze, Site("u"), parent_close="terminate")
    assert_type(await handle.result(), dict[str, object])
    await analyze("u")  # type: ignore[arg-type]
    await analyze()  # type: ignore[call-arg]
    await analyze(Site("u"), 2)  # type: ignore[call-arg]


@analyze.step
async def wrong_default(page: str = website.output) -> int:  # type: ignore[assignment]
    return 1


@analyze.step
async def wrong_input(run: int = analyze.run.output) -> int:  # type: ignore[assignment]
    return 1


@analyze.map(sentiment)  # type: ignore[arg-type]
def not_a_list(x: float) -> float:
    return x


@analyze.map(analyze.run)  # type: ignore[arg-type]
def not_a_list_either(x: Site) -> Site:
    return x


@analyze.map(links)  # type: ignore[arg-type]
def wrong_element(x: int) -> int:
    return x


@analyze.map(links)  # type: ignore[arg-type]
def two_parameters(x: str, website: Page) -> int:
    return 1


analyze.step(on_unmet="ignore")  # type: ignore[call-overload]
analyze.step(atempts=3)  # type: ignore[call-overload]
app.flow("wrong", retention_days=3)  # type: ignore[call-overload]


@app.workflow
async def enrich(ctx: Context, page: Page) -> int:
    return len(page.links)


@app.workflow
async def visit(ctx: Context, site: Site) -> Page:
    return Page(site.url, [])


enriched = analyze.run_step("enriched", enrich, of=website, attempts=1)
assert_type(enriched.output, int)
visited = analyze.run_step("visited", visit)
assert_type(visited.output, Page)
inner = analyze.run_step("inner", many, of=double)
assert_type(inner.output, dict[str, object])
all_enriched = many.run_map("all", app.flow("one", input=int), over=many.run)
assert_type(all_enriched.output, list[dict[str, object]])


@analyze.step
async def after(enriched: int, first: Page = visited.output) -> int:
    return enriched


analyze.run_step("wrong", enrich, of=sentiment)  # type: ignore[misc]
analyze.run_step("wrong", enrich)  # type: ignore[arg-type]
analyze.run_step("wrong", visit, queu="x")  # type: ignore[call-overload]
analyze.run_map("wrong", enrich, over=website)  # type: ignore[arg-type]
