"""Why some tests of one database do not hold for one over several, and are left out there.

With HOLDFAST_TEST_SHARDS, a number, the tests of stores and clients have so many databases as one
engine. These say something else of it, by what the page about several databases says.
"""

from __future__ import annotations

import pytest

DIFFERENCES = {
    "limits hold in each shard by itself": """
        client/test_jobs.py::test_limits_and_rules_hold_for_jobs
        client/test_limits.py
        client/test_units.py
        contract/test_builds.py::test_a_pause_and_a_limit_of_a_workflow_concern_pinned_runs
        contract/test_changed_limits.py
        contract/test_limit_turns.py
        contract/test_limits.py
        contract/test_limits_random.py
        contract/test_message_limits.py::test_tasks_of_the_same_queue_count_for_themselves
        contract/test_reschedule.py::test_a_moved_run_counts_for_the_limits_of_its_new_queue
        contract/test_run_retries.py::test_it_keeps_its_place_of_a_limit
        contract/test_units.py
    """,
    "large payloads outside of the database are for one database": """
        client/test_large_payloads.py
        client/test_webhooks.py::test_a_large_body_is_an_object
        contract/test_large_payloads.py
    """,
    "a publish counts what shard 0 has told; others are told after it": """
        client/test_topics.py::test_forks_and_retries_of_runs_that_wait_are_told_of_events
        contract/test_run_retries.py::test_signals_and_subscriptions_go_along
        contract/test_topics.py::test_a_run_that_continues_as_new_keeps_its_subscriptions
        contract/test_topics.py::test_a_run_that_waits_is_told_and_woken
        contract/test_topics.py::test_events_reach_a_run_also_while_it_does_not_wait
        contract/test_topics.py::test_only_runs_whose_condition_holds_are_told
    """,
    "what a commit sends to other shards arrives after it": """
        contract/test_children.py::test_a_commit_tells_which_signals_could_not_be_delivered
        contract/test_children.py::test_a_run_signals_another
    """,
    "the key of a child, and a rule for its start, are those of its parent's shard": """
        contract/test_children.py::test_a_key_that_is_another_runs_is_refused
        contract/test_debounces.py::test_child_is_not_shared
        contract/test_flow_children.py::test_a_second_call_of_the_same_child_starts_nothing
        contract/test_singletons.py::test_child_that_the_rule_refuses_fails_in_its_parent
        contract/test_start_rules_elsewhere.py::test_step_that_a_rule_refuses_fails_for_good
    """,
    "the limit of one call is that of each shard": """
        contract/test_ends.py::test_time_outs_are_taken_in_bounded_bites
        contract/test_queries.py::test_a_count_ends_at_a_limit_and_says_so
        contract/test_queries.py::test_runs_are_counted_by_status_up_to_a_limit
        contract/test_queries.py::test_the_next_events_of_several_logs_are_bounded_and_shared
        contract/test_retention.py::test_a_batch_has_a_size_and_the_next_continues
        contract/test_retention.py::test_a_preview_says_what_would_go_and_what_is_kept
        contract/test_retention.py::test_the_sweepers_state_counts_what_is_due
        contract/test_stats.py::test_a_sample_counts_to_a_limit_for_each_queue_and_handler
        contract/test_stats.py::test_gauges_say_what_waits_and_end_at_a_limit
        contract/test_stats.py::test_old_samples_are_kept_by_the_hour_then_deleted
    """,
    "a worker has one shard: it counts once in each, and its claims are in order in each": """
        client/test_alerts.py::test_runs_that_fail_start_the_workflow_that_tells_of_it
        contract/test_alerts.py::test_a_queue_that_nobody_serves_is_told_after_a_minute
        contract/test_builds.py::test_a_run_whose_build_has_no_worker_says_so
        contract/test_builds.py::test_what_only_old_workers_serve_keeps_them
        contract/test_claim.py::test_a_claim_is_by_priority_then_age
        contract/test_flow_races.py::test_many_workers_bring_the_same_shape
        contract/test_flows.py::test_the_more_urgent_run_comes_first
        contract/test_leases.py::test_a_claim_says_if_there_are_suspects
        contract/test_leases.py::test_a_poison_takes_none_of_fifty_innocent_suspects_along
        contract/test_leases.py::test_a_suspect_that_makes_progress_makes_way_for_the_next
        contract/test_leases.py::test_a_worker_holds_one_run_at_a_time_that_has_lost_three
        contract/test_pause.py::test_nothing_is_claimed_of_what_is_paused
        contract/test_retention.py::test_one_process_sweeps_at_a_time
        contract/test_stats.py::test_a_minute_has_one_sample_of_what_waits_and_what_is_worked_on
        contract/test_topics.py::test_an_event_id_counts_once
    """,
    "each shard sends its own wake-ups": """
        client/test_queue_limits.py::test_a_rate_lets_who_waits_have_a_message_when_it_is_time
        contract/test_builds.py::test_runs_are_moved
        contract/test_notices.py
        contract/test_schedules.py::test_changes_tell_schedulers
        contract/test_start.py::test_a_start_wakes_its_queues_once_each
    """,
    "a start that is refused starts nothing in its shard; others start theirs": """
        contract/test_start.py::test_a_start_with_a_value_that_the_database_refuses_starts_nothing
    """,
    "who starts again after a run has a key, which leads to that run's shard": """
        contract/test_start.py::test_a_run_starts_after_another_only_while_that_is_there
    """,
    "a client believes for 5 s that a workflow has no rules for starts": """
        contract/test_builds.py::test_every_kind_of_start_gets_a_build
    """,
}
REASONS = {place: reason for reason, places in DIFFERENCES.items() for place in places.split()}


def leave_out(items: list[pytest.Item]) -> None:
    """Skip the tests that say something else of several databases."""
    for item in items:
        file, _, rest = item.nodeid.partition("::")
        file = file.removeprefix("tests/store/")
        name = f"{file}::{rest.partition('[')[0]}"
        if reason := REASONS.get(file) or REASONS.get(name):
            item.add_marker(pytest.mark.skip(reason=reason))
