"""Each call of the port says how it reaches the shards."""

from __future__ import annotations

import inspect

import pytest

from holdfast.errors import HoldfastError
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.shards import sharded
from holdfast.store.shards.router import MAKERS
from holdfast.store.shards.store import ShardedStore

# Calls that only workers make, each in its own shard, or that read an app's payloads for them.
WORKERS = {
    "ping", "begin_deletions", "begin_sweep", "claim_deliveries",
    "claim_tasks", "commit", "connector", "declare_alerts", "declare_limits",
    "declare_subscriptions", "delete_archived", "due_backfills",
    "due_payloads", "due_schedules", "end_deletions", "end_deliveries", "end_forwards",
    "end_step_tasks", "ensure_schedules", "expire_start_keys", "export_runs", "find_step",
    "fire_backfill", "fire_schedules", "forget_payloads", "free_singletons", "heartbeat",
    "kept_declarations", "lease_due_runs", "look_at_alerts", "merge_samples", "merge_stats",
    "needless_results", "next_due", "note_put", "reap_workers", "receive_signals", "results_since",
    "release_schedules", "release_tasks", "remove_worker", "return_expired", "run_as_flow",
    "sample_load", "sealed_step", "set_shard_state", "sign_on_app", "stray_leases", "sweep_buckets",
    "sweep_limits", "sweep_queues", "sweep_runs", "sweep_topics", "take_counts", "take_ends",
    "take_forwards", "time_out_activities", "time_out_runs", "write_logs", "write_streams",
}  # fmt: skip


def test_each_call_is_routed_or_is_one_of_workers() -> None:
    port = {
        name
        for name, each in inspect.getmembers(Store)
        if not name.startswith("_") and callable(each)
    }
    routed = set().union(*MAKERS)
    own = {name for name in dir(ShardedStore) if not name.startswith("_")}
    assert sorted(port - routed - own - WORKERS) == []
    assert sorted(routed - port) == []
    assert sorted(WORKERS - port) == []
    assert sorted(WORKERS & (routed | own)) == []
    assert len(routed) == sum(map(len, MAKERS))


def test_a_call_of_workers_is_refused() -> None:
    store = sharded([MemoryStore(), MemoryStore()])
    with pytest.raises(HoldfastError, match="claim_tasks is a call of a worker"):
        _ = store.claim_tasks
