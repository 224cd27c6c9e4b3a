"""How each call of the port reaches the shards. What is not named here is for workers."""

from __future__ import annotations

from typing import Final

HOME: Final = frozenset(
    {
        "ack_and_start", "ack_messages", "backfill_schedule", "cancel_backfills", "cancel_message",
        "change_message", "check_hints", "create_queue", "create_schedule",
        "delete_queue", "delete_schedule", "discard_deliveries", "extend_deliveries",
        "get_message", "get_schedule", "list_buckets", "list_deliveries", "list_kept",
        "list_messages", "list_queues", "list_schedules", "list_subscriptions", "message_failures",
        "message_page", "next_delivery_at", "next_look", "pause_schedule", "publish",
        "purge_messages", "queue_metrics", "receive_messages", "redrive_deliveries",
        "redrive_messages", "resume_schedule", "return_messages", "send_messages",
        "start_buffered", "subscribe", "trigger_schedule", "unsubscribe", "update_queue",
        "update_schedule",
    }
)  # fmt: skip
"""Calls about what has a name: shard 0 has it."""

OF_RUN: Final = frozenset(
    {
        "decide_approval", "explain_limits", "failing_puts", "find_reply", "find_signal",
        "fork_flow", "fork_run", "list_activities", "list_streams", "open_step_tasks", "read_log",
        "receive_webhook", "retry_flow", "retry_plan", "set_attributes", "set_tags",
        "shape_of_run", "start_wait",
    }
)  # fmt: skip
"""Calls about one run, which comes first, or whose `run_id` the first argument has."""

OF_RUNS: Final = frozenset({"flow_steps", "get_runs", "get_values", "newest_runs"})
"""Calls that answer with a mapping of the runs that come first."""

CHANGES: Final = frozenset(
    {
        "cancel_runs", "pause_runs", "reschedule_runs", "resume_runs", "signal_runs",
        "terminate_runs",
    }
)  # fmt: skip
"""Calls that change the runs that come first, and say what became of each, in order."""

EVERYWHERE: Final = frozenset(
    {
        "declare_build", "declare_catalogue", "declare_options", "forget_archive", "forget_waits",
    }
)  # fmt: skip
"""Calls that must reach all shards; the answer is that of shard 0."""

FIRST: Final = frozenset({"find_run", "find_webhook"})
"""Calls that one shard can answer: the first that does not answer with nothing."""

UNITED: Final = frozenset(
    {
        "apps_with", "list_apps", "list_flows", "list_limits", "list_start_rules",
    }
)  # fmt: skip
"""Calls about what all shards are told alike: each entry is given once, with sums of counts."""
