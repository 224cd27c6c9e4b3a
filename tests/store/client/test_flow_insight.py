"""What a flow's run waits for, and its timeline, from a client."""

from __future__ import annotations

from holdfast import Limit
from holdfast.client import Client
from holdfast.insight.actions import Action
from holdfast.insight.doctor import check_unserved
from holdfast.insight.flow_progress import progress_of
from holdfast.insight.flow_spans import step_spans
from holdfast.types import FlowShape
from holdfast.values.ids import step_run_id

from .flow_scene import NAME, FlowScene, mapped, single


async def test_a_step_that_no_worker_serves_has_the_action_that_starts_one(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site", queue="gpu"), single("save", "site"))
    found = await client.why(run_id)
    assert (found.run_id, found.state) == (run_id, "queued")
    assert found.because.startswith("step site has been due for ")
    assert found.because.endswith(": no live worker serves shop/trip@1 on queue 'gpu'")
    assert found.actions == (Action("start_worker", name="gpu"),)
    assert found.details == ("0 of 2 steps ended",)


async def test_a_worker_for_another_queue_is_named(client: Client, scene: FlowScene) -> None:
    run_id = await scene.start(single("site", queue="gpu"))
    await scene.sign_on()
    found = await client.why(run_id)
    assert "worker ann has shop/trip@1, for other queues: default" in found.details


async def test_a_flow_made_from_sql_may_have_workers_that_are_not_signed_on(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site"), name="trip")
    found = await client.why(run_id)
    assert found.because.endswith("one that speaks SQL only is not signed on, and may take it")


async def test_a_running_step_has_its_worker_and_its_attempt(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site"), single("save", "site"))
    await scene.sign_on()
    await scene.take()
    found = await client.why(run_id)
    assert found.state == "running"
    assert found.because.startswith("step site runs on worker ann: attempt 1, begun ")
    assert found.actions == ()


async def test_a_step_whose_worker_is_not_signed_on_says_when_its_lease_ends(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site"))
    await scene.take()
    found = await client.why(run_id)
    assert "on worker ann, which is not signed on (its lease ends in " in found.because


async def test_a_step_that_is_tried_again_says_when_and_after_what(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site", base_delay=60))
    await scene.fail((await scene.take())["site"])
    found = await client.why(run_id)
    assert found.state == "waiting"
    assert found.because.startswith("step site is tried again in ")
    assert "; attempt 1 failed " in found.because
    assert found.because.endswith(" ago: OSError: no luck")


async def test_a_delayed_run_and_the_runs_that_are_its_steps_name_their_start(
    client: Client, scene: FlowScene
) -> None:
    inner = FlowShape(name="shop/inner", steps=(single("a"),))
    await scene.store.ensure_flow(inner, "hash")
    within = single("within", runs=inner.handler, runs_kind="flow")
    run_id = await scene.start(single("site"), within, single("save", "site"), delay=60.0)
    created_at = (await scene.store.get_runs([run_id]))[run_id].created_at
    for each, ended in [
        (run_id, "0 of 3 steps ended"),
        (step_run_id(run_id, "within", 1, created_at), "0 of 1 step ended"),
    ]:
        found = await client.why(each)
        assert found.state == "waiting"
        assert found.because.startswith("its start is delayed until ")
        assert found.details == (ended,)


async def test_a_map_of_runs_names_how_many_may_be_under_way(
    client: Client, scene: FlowScene
) -> None:
    each = mapped("each", runs="shop/order@1", runs_kind="workflow", concurrency=2)
    run_id = await scene.start(each, given=[1, 2, 3])
    found = await client.why(run_id)
    waits = "map each waits for 3 runs of shop/order@1"
    assert found.because == f"{waits}, of which 2 may be under way at once"
    run_id = await scene.start(each, given=[1, 2])
    assert (await client.why(run_id)).because == "map each waits for 2 runs of shop/order@1"


async def test_a_delayed_step_has_the_moment_at_which_it_begins(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site", start_delay=60))
    found = await client.why(run_id)
    assert found.state == "waiting"
    assert found.because.startswith("step site begins at ")
    assert found.because.endswith(": it has a start_delay")


async def test_a_step_that_is_a_run_with_a_start_delay_is_delayed(
    client: Client, scene: FlowScene
) -> None:
    pay = single("pay", runs="shop/pay@1", runs_kind="workflow", start_delay=60)
    run_id = await scene.start(pay)
    assert (await client.why(run_id)).because.startswith("step pay waits for run ")
    (state,) = (await scene.store.flow_steps([run_id]))[run_id]
    assert list(step_spans([], [state], None)) == []
    (step,) = progress_of([state], [], ended=False)
    assert (step.state, step.started_at, step.next_at) == ("delayed", None, state.started_at)
    (step,) = progress_of([state], [], ended=True)
    assert (step.state, step.started_at, step.next_at) == ("created", None, None)


async def test_a_step_of_a_paused_queue_has_the_action_that_resumes_it(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site", queue="gpu"))
    await client.queues.pause("gpu", "no power")
    found = await client.why(run_id)
    assert "queue 'gpu' was paused" in found.because
    assert found.actions == (Action("resume_queue", name="gpu"),)
    await client.queues.resume("gpu")
    await client.workflows.pause(NAME)
    assert (await client.why(run_id)).actions == (Action("resume_workflow", name=NAME),)


async def test_a_paused_run_names_the_steps_that_still_run(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site"), single("mail"))
    await scene.sign_on()
    await scene.take(1)
    await client.runs.pause(run_id, "wrong address")
    found = await client.why(run_id)
    assert found.because.startswith("it was paused ")
    assert any("runs on worker ann" in detail for detail in found.details)
    assert found.actions == (Action("resume", run_id),)


async def test_a_pause_says_that_it_does_not_reach_runs_that_are_steps(
    client: Client, scene: FlowScene
) -> None:
    """Neither the pause of a flow's run, nor that of the flow."""
    pay = single("pay", runs="shop/pay@1", runs_kind="workflow")
    run_id = await scene.start(single("site"), pay)
    says = "step pay: other runs, which continue, as a pause reaches no other runs; pause these"
    assert not any(says in detail for detail in (await client.why(run_id)).details)
    await client.runs.pause(run_id)
    assert any(says in detail for detail in (await client.why(run_id)).details)
    await client.runs.resume(run_id)
    await client.workflows.pause(NAME)
    found = await client.why(run_id)
    assert any(says in detail for detail in found.details)
    assert Action("resume_workflow", name=NAME) in found.actions


async def test_a_step_that_is_a_run_waits_for_the_resume_of_its_flow(
    client: Client, scene: FlowScene
) -> None:
    await client.workflows.pause(NAME, "wrong prices")
    run_id = await scene.start(single("pay", runs="shop/pay@1", runs_kind="workflow"))
    found = await client.why(run_id)
    assert found.because.startswith(f"step pay could begin, but its workflow {NAME!r} was paused ")
    assert found.actions == (Action("resume_workflow", name=NAME),)
    await client.workflows.resume(NAME)
    assert (await client.why(run_id)).because.startswith("step pay waits for run ")


async def test_several_steps_are_listed_with_the_elements_of_maps_counted(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(
        mapped("page", base_delay=60), single("mail"), given=[1, 2, 3, 4, 5, 6]
    )
    await scene.sign_on()
    taken = await scene.take()
    pages = [task for key, task in taken.items() if key.startswith("page")]
    await scene.complete(pages[0])
    await scene.fail(pages[1])
    await scene.fail(pages[2])
    found = await client.why(run_id)
    assert found.because == "it waits for 2 steps: page, mail"
    page, mail, ended = found.details
    assert page.startswith("map page: 1 of 6 elements done; 2 are tried again, the first in ")
    assert "; attempt 1 failed at element " in page
    failures = next(
        each for each in (await client.timeline(run_id)).spans if each.failures
    ).failures
    numbers = [pages[n].key.partition(":")[2] for n in (1, 2)]
    assert [each.error for each in failures] == [f"element {n}: OSError: no luck" for n in numbers]
    assert page.endswith("; 3 run on worker ann")
    assert mail.startswith("step mail runs on worker ann")
    assert ended == "0 of 2 steps ended"


async def test_a_failed_flow_names_the_step_and_can_be_retried(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site"), single("save", "site"))
    await scene.fail((await scene.take())["site"], retryable=False)
    found = await client.why(run_id)
    assert found.state == "failed"
    assert found.because.endswith("step site failed: OSError: no luck")
    assert "step site failed after 1 attempt" in found.details
    assert found.actions == (Action("retry", run_id),)


async def test_a_map_that_had_too_many_failures_says_how_many_it_tolerates(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(mapped("sent", tolerated_count=1), given=[1, 2, 3])
    for task in list((await scene.take()).values())[:2]:
        await scene.fail(task, retryable=False)
    found = await client.why(run_id)
    assert found.because.endswith("OSError: no luck; 2 of 3 elements failed, 1 is tolerated")


async def test_a_timeline_has_a_span_for_each_step_that_has_begun(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(
        single("site", base_delay=0),
        mapped("page", "site"),
        single("save", "page", "site"),
        single("sad", "site", required='{"site": {"no": true}}'),
    )
    await scene.fail((await scene.take())["site"])
    await scene.complete((await scene.take())["site"], [1, 2])
    first = (await scene.take(1)).popitem()[1]
    await scene.complete(first)
    spans = {span.label: span for span in (await client.timeline(run_id)).spans}
    assert sorted(spans) == ["page", "sad", "site"]
    site, page, sad = spans["site"], spans["page"], spans["sad"]
    assert (site.kind, site.outcome, site.note, site.attempts) == ("step", "done", "[1, 2]", 2)
    assert [each.error for each in site.failures] == ["OSError: no luck"]
    assert site.began_at <= site.failures[0].at <= (site.ended_at or 0)
    assert (page.outcome, page.note, page.ended_at) == ("open", "1 of 2 done", None)
    assert (sad.outcome, sad.note) == ("dropped", "skipped: its condition was not met")


async def test_a_timeline_says_how_many_elements_of_a_map_failed(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(mapped("sent", tolerated_count=1), given=[1, 2, 3])
    first, *others = (await scene.take()).values()
    await scene.fail(first, retryable=False)
    for task in others:
        await scene.complete(task)
    (sent,) = [each for each in (await client.timeline(run_id)).spans if each.kind == "step"]
    assert (sent.outcome, sent.note) == ("done", "3 elements, 1 failed")


async def test_a_timeline_ends_what_was_under_way_when_the_run_failed(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site"), single("mail"))
    taken = await scene.take()
    await scene.fail(taken["site"], retryable=False)
    found = await client.timeline(run_id)
    spans = {span.label: span for span in found.spans}
    assert (spans["site"].outcome, spans["site"].note) == ("failed", "OSError: no luck")
    assert (spans["mail"].outcome, spans["mail"].note) == ("dropped", "the run ended first")
    assert spans["mail"].ended_at == found.ended_at


async def test_a_step_that_was_skipped_has_the_attempts_that_were_its_own(
    client: Client, scene: FlowScene
) -> None:
    """The error of one skipped because another failed is that of the other, which it names."""
    run_id = await scene.start(
        single("site", max_attempts=2, base_delay=0),
        single("page", "site"),
        single("mail", max_attempts=2, base_delay=0, when_exhausted="skip"),
        single("last", "page", "mail", trigger_rule="all_done"),
    )
    for _ in range(2):
        taken = await scene.take()
        await scene.fail(taken["site"])
        await scene.fail(taken["mail"])
    steps = (await scene.store.flow_steps([run_id]))[run_id]
    assert [each.attempts for each in progress_of(steps, (), ended=False)] == [2, 0, 2, 0]
    spans = {span.label: span for span in (await client.timeline(run_id)).spans}
    page, mail = spans["page"], spans["mail"]
    assert (page.note, page.attempts) == ("skipped: step site failed: OSError: no luck", 1)
    assert page.failures == ()
    assert (mail.note, mail.attempts) == ("skipped: OSError: no luck", 2)
    assert [each.number for each in mail.failures] == [1, 2]


async def test_unserved_steps_are_named_by_their_flow(scene: FlowScene) -> None:
    await scene.start(single("site", queue="gpu"), single("mail", queue="gpu"))
    finding = await check_unserved(scene.store)
    assert finding.message == (
        "no live worker serves the steps of flow shop/trip@1 on queue 'gpu' (2 tasks)"
    )
    assert finding.action == Action("start_worker", name="gpu")


async def test_unserved_steps_of_a_flow_made_from_sql_may_have_workers(scene: FlowScene) -> None:
    await scene.start(single("site"), name="trip")
    finding = await check_unserved(scene.store)
    assert finding.message.endswith("(1 task; workers that speak SQL only are not signed on)")


async def test_a_step_names_the_limit_that_holds_it(client: Client, scene: FlowScene) -> None:
    """Unless its queue is paused, or no worker serves it: then that comes first."""
    await client.limits.set(Limit(1), queue="default")
    await scene.start(single("site"))
    await scene.sign_on()
    await scene.take()
    held = await scene.start(single("site"))
    await scene.take()
    found = await client.why(held)
    assert found.state == "queued"
    assert found.because.startswith("step site has been due for ")
    assert found.because.endswith(
        ": a limit holds it: queue 'default' runs 1 at once, and has 1 now; it is the first "
        "of those that wait with the same keys"
    )
    await client.queues.pause("default", "no power")
    found = await client.why(held)
    assert "queue 'default' was paused" in found.because
    assert found.actions == (Action("resume_queue", name="default"),)
    await client.queues.resume("default")
    await client.limits.remove(Limit, queue="default")
    assert (await client.why(held)).because.endswith(", and 1 worker could take it")


async def test_a_step_behind_a_limit_that_no_worker_serves_says_so(
    client: Client, scene: FlowScene
) -> None:
    await client.limits.set(Limit(1), queue="default")
    await scene.start(single("site"))
    await scene.take()
    held = await scene.start(single("site"))
    await scene.take()
    found = await client.why(held)
    assert found.because.endswith(": no live worker serves shop/trip@1 on queue 'default'")
    assert found.actions == (Action("start_worker", name="default"),)
