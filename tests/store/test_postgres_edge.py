"""What the functions that people call refuse, and what a database has from before they did."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest
from contract.actors import ManualWorker, log, new_run, signal, start, step
from scene import Scene

from holdfast import App, Client, Context
from holdfast.errors import ForkRefused, InvalidInput, RunExists
from holdfast.types import RunFilter, Suspend, TurnCommit
from holdfast.worker import Worker

NULL, WRONG, MISSING = "22004", "22023", "HF003"
RUN = "'00000000-0000-7000-8000-000000000001'"
IDS = f"array[{RUN}]::uuid[]"
TOKEN = f"{RUN[1:-1]}:1:render"
LONG = "repeat('k', 2000)"
UNREADABLE = [
    """'"\\ud800"'""",
    """'"\\udc00 "'""",
    """'{"a": "\\u0000"}'""",
    "repeat('[', 2000) || repeat(']', 2000)",
]

# Each call that is refused, and how. BAD stands for each JSON text that no reader can read.
UNKNOWN_QUEUE = "HFQ01"
REFUSED = [
    ("set_attributes(null, '{}')", NULL),
    ("set_tags(null)", NULL),
    ("receive_webhook(null, null, '1')", NULL),
    ("create_queue(null)", NULL),
    ("create_queue('no queue')", WRONG),
    ("create_queue('a', null)", NULL),
    ("create_queue('a', true, true)", WRONG),
    ("create_queue('a', p_visibility_seconds => null)", NULL),
    ("create_queue('a', p_visibility_seconds => 'nan')", WRONG),
    ("create_queue('a', p_visibility_seconds => 1e300)", WRONG),
    ("create_queue('a', p_max_receives => 0)", WRONG),
    ("create_queue('a', p_dead_letters => 'b')", WRONG),
    ("create_queue(repeat('a', 128), p_max_receives => 1)", WRONG),
    ("create_queue('a', p_dedup_seconds => -1)", WRONG),
    ("create_queue('a', p_keep_seconds => -1)", WRONG),
    ("update_queue('nothing', 1, null, null, 1, null)", UNKNOWN_QUEUE),
    ("update_queue(null, 1, null, null, 1, null)", NULL),
    ("delete_queue(null)", NULL),
    ("send(null, '1')", NULL),
    ("send('nothing', '1')", UNKNOWN_QUEUE),
    ("send_messages('nothing', '{1}')", UNKNOWN_QUEUE),
    ("send_messages(null, '{1}')", NULL),
    ("receive('nothing')", UNKNOWN_QUEUE),
    ("receive(null)", NULL),
    ("receive_messages('nothing')", UNKNOWN_QUEUE),
    ("pop('nothing')", UNKNOWN_QUEUE),
    ("pop(null)", NULL),
    ("get_message('nothing', 1)", UNKNOWN_QUEUE),
    ("cancel_message('nothing', 1)", UNKNOWN_QUEUE),
    ("change_message('nothing', 1)", UNKNOWN_QUEUE),
    ("change_message(null, 1, '1')", NULL),
    ("ack(null)", NULL),
    ("ack('nonsense')", WRONG),
    ("ack('999999999999.00000000-0000-0000-0000-000000000000.1')", WRONG),
    ("nack(null)", NULL),
    ("nack('{nonsense}')", WRONG),
    ("nack('{1.00000000-0000-0000-0000-000000000000.1}', -1)", WRONG),
    ("extend('{nonsense}', 1)", WRONG),
    ("extend('{1.00000000-0000-0000-0000-000000000000.1}', null)", NULL),
    ("extend('{1.00000000-0000-0000-0000-000000000000.1}', 'nan')", WRONG),
    ("purge_messages('nothing')", UNKNOWN_QUEUE),
    ("receive('sieve', p_contains => BAD)", WRONG),
    ("receive('sieve', p_contains => '1e400000')", WRONG),
    ("send('sieve', '1', p_headers => BAD)", WRONG),
    ("send('sieve', '1', p_at => '294276-01-01')", WRONG),
    ("send('sieve', '1', p_at => '4713-01-01 BC')", WRONG),
    ("send('sieve', '1', p_headers => '{\"a\":1e400000}')", WRONG),
    ("message_page('sieve', 1, '{nonsense}')", WRONG),
    ("message_page('sieve', 1, '{false,1,9223372036854775807}')", WRONG),
    ("list_buckets('shop/nobody', -9223372036854775808)", WRONG),
    ("unserved(1e18)", WRONG),
    ("unserved('nan')", WRONG),
    ("backfill_schedule('shop/nobody', 1, -9223372036854775808)", WRONG),
    ("read_stats(-9223372036854775808, null, 1)", WRONG),
    (f"start_one({RUN}, 'order', p_rules => BAD)", WRONG),
    (f"start_one({RUN}, 'order', p_headers => '{{\"a\":1e400000}}')", WRONG),
    (f"start_one({RUN}, 'order', p_tags => '[1e400000]')", WRONG),
    ("redrive_messages('nothing')", UNKNOWN_QUEUE),
    ("queue_metrics('nothing')", UNKNOWN_QUEUE),
    ("queue_metrics(p_limit => -1)", WRONG),
    ("list_messages('nothing')", UNKNOWN_QUEUE),
    ("clipped_messages('nothing', 1, 1)", UNKNOWN_QUEUE),
    ("message_page('nothing', 1)", UNKNOWN_QUEUE),
    ("declare_catalogue('{order}', '{0}', '{null}', '{a}')", WRONG),
    ("declare_catalogue('{order}', '{1}', '{null}', '{null}')", NULL),
    ("declare_options('{order}', '{1}', '{-1}', '{a}', '{2}', null)", WRONG),
    ("declare_options('{order}', '{1}', '{9}', '{\"a b\"}', '{2}', null)", WRONG),
    ("declare_options('{order}', '{1}', '{9}', '{a}', '{5}', null)", WRONG),
    ("declare_options('{order}', '{1}', '{9}', '{a}', '{2}', '{-1}')", WRONG),
    ("declare_options('{order}', '{1}', '{null}', '{a}', '{2}', null)", NULL),
    ("list_kept('nothing')", UNKNOWN_QUEUE),
    ("start_run(null)", NULL),
    ("start_run('')", WRONG),
    ("start_run('shop/no name')", WRONG),
    ("start_run('shop/order@1')", WRONG),
    ("start_run('shop/' || repeat('n', 129))", WRONG),
    ("start_run(repeat('n', 129) || '/order')", WRONG),
    ("start_run('shop/a/b')", WRONG),
    ("start_run('/order')", WRONG),
    ("start_run(E'shop/order\\n')", WRONG),
    ("start_run('shop/order', BAD)", WRONG),
    ("start_run('shop/order', p_key => '')", WRONG),
    (f"start_run('shop/order', p_key => {LONG})", WRONG),
    ("start_run('shop/order', p_queue => 'no queue')", WRONG),
    ("start_run('shop/order', p_version => 0)", WRONG),
    ("start_run('shop/order', p_version => -1)", WRONG),
    ("start_run('shop/order', p_priority => 5)", WRONG),
    ("start_run('shop/order', p_delay_seconds => 'infinity')", WRONG),
    ("start_run('shop/order', p_delay_seconds => 'nan')", WRONG),
    ("start_run('shop/order', p_delay_seconds => -1)", WRONG),
    ("full_name('order')", WRONG),
    ("publish(null)", NULL),
    ("publish('a.')", WRONG),
    ("publish('a.*')", WRONG),
    ("publish(repeat('a', 256))", WRONG),
    ("publish('a', BAD)", WRONG),
    ("publish('a', null)", NULL),
    ("publish('a', '1', '')", WRONG),
    (f"publish('a', '1', {LONG})", WRONG),
    ("subscribe(null)", NULL),
    ("subscribe('1')", WRONG),
    ("subscribe('{}')", NULL),
    ("subscribe(BAD)", WRONG),
    ("""subscribe('{"pattern":"a","kind":"workflow","target":"a","macth":{}}')""", WRONG),
    ("""subscribe('{"pattern":"a","kind":"run","target":"a"}')""", WRONG),
    ("""subscribe('{"pattern":"a..b","kind":"workflow","target":"a"}')""", WRONG),
    ("""subscribe('{"pattern":"a","kind":"workflow","target":"no name"}')""", WRONG),
    ("""subscribe('{"pattern":"a","kind":"workflow","target":"a","version":"x"}')""", WRONG),
    ("""subscribe('{"pattern":"a","kind":"url","target":"https://a/"}')""", NULL),
    ("list_subscriptions(null, 'a..b')", WRONG),
    ("list_subscriptions(p_limit => -1)", WRONG),
    ("list_deliveries(p_limit => -1)", WRONG),
    ("start_one(null, 'order')", NULL),
    (f"start_one({RUN}, null)", NULL),
    (f"start_one({RUN}, 'no name')", WRONG),
    (f"start_one({RUN}, 'order', BAD)", WRONG),
    (f"start_one({RUN}, 'order', p_version => 0)", WRONG),
    (f"start_one({RUN}, 'order', p_key => {LONG})", WRONG),
    (f"start_one({RUN}, 'order', p_queue => 'no queue')", WRONG),
    (f"start_one({RUN}, 'order', p_priority => -1)", WRONG),
    (f"start_one({RUN}, 'order', p_start_at => 9223372036854775807)", WRONG),
    (f"start_one({RUN}, 'order', p_delay => -1)", WRONG),
    (f"start_one({RUN}, 'order', p_timeout => 1e300)", WRONG),
    (f"start_one({RUN}, 'order', p_retention => -1)", WRONG),
    (f"start_one({RUN}, 'order', p_tags => to_json(1))", WRONG),
    (f"start_one({RUN}, 'order', p_tags => '[null]')", WRONG),
    (f"start_one({RUN}, 'order', p_tags => BAD)", WRONG),
    (f"start_one({RUN}, 'order', p_headers => '[]')", WRONG),
    (f"start_one({RUN}, 'order', p_headers => json_build_object('a', 1))", WRONG),
    (f"start_one({RUN}, 'order', p_waiter => {LONG})", WRONG),
    ("start_runs(null, null)", NULL),
    ("start_runs(array[null]::uuid[], array['order'])", NULL),
    (f"start_runs({IDS}, null)", NULL),
    (f"start_runs({IDS}, array['order', 'order'])", NULL),
    (f"start_runs({IDS} || {IDS}, array['order', null])", NULL),
    (f"start_runs({IDS} || {IDS}, array['order', 'no name'])", WRONG),
    (f"start_runs({IDS} || {IDS}, array['no name', 'order'])", WRONG),
    (f"start_runs({IDS} || {IDS}, array['a', 'a'], p_queues => array['b', 'no queue'])", WRONG),
    (f"start_runs({IDS} || {IDS}, array['a', 'a'], p_queues => array['no queue', 'b'])", WRONG),
    (f"start_runs({IDS}, array['order'], array[BAD]::json[])", WRONG),
    (f"start_runs({IDS} || {IDS}, array['order', 'order'], array['1', BAD]::json[])", WRONG),
    (f"start_runs({IDS}, array['order'], p_start_ats => array[9223372036854775807])", WRONG),
    (f"start_runs({IDS}, array['order'], p_timeouts => array[1e300])", WRONG),
    (f"start_runs({IDS}, array['order'], p_retentions => array[-1])", WRONG),
    (f"start_runs({IDS}, array['order'], p_tags => array[to_json(1)])", WRONG),
    (f"start_runs({IDS}, array['order'], p_tags => array['[null]'::json])", WRONG),
    (f"start_runs({IDS}, array['order'], p_tags => array[BAD]::json[])", WRONG),
    (f"start_runs({IDS}, array['order'], p_headers => array['[]'::json])", WRONG),
    (f"start_runs({IDS}, array['order'], p_headers => array[json_build_object('a', 1)])", WRONG),
    (f"start_runs({IDS}, array['order'], p_waiters => array[{LONG}])", WRONG),
    ("signal_runs(null, array['a'], array['1']::json[], null)", NULL),
    ("signal_runs(array[null]::uuid[], array['a'], array['1']::json[], null)", NULL),
    (f"signal_runs({IDS}, null, array['1']::json[], null)", NULL),
    (f"signal_runs({IDS}, array[null], array['1']::json[], null)", NULL),
    (f"signal_runs({IDS}, array['a'], null, null)", NULL),
    (f"signal_runs({IDS}, array['a'], array[null]::json[], null)", NULL),
    (f"signal_runs({IDS} || {IDS}, array['a', 'b'], array['1']::json[], null)", NULL),
    (f"signal_runs({IDS}, array['a b'], array['1']::json[], null)", WRONG),
    (f"signal_runs({IDS}, array['a'], array[BAD]::json[], null)", WRONG),
    (f"signal_runs({IDS}, array['a'], array['1']::json[], array[''])", WRONG),
    (f"signal_runs({IDS}, array['a'], array['1']::json[], array[{LONG}])", WRONG),
    ("cancel_runs(null)", NULL),
    ("cancel_runs(array[null]::uuid[])", NULL),
    (f"cancel_runs({IDS}, repeat('r', 100000))", WRONG),
    (f"cancel_runs({IDS}, p_by => repeat('r', 100000))", WRONG),
    (f"resume_runs({IDS}, repeat('r', 100000))", WRONG),
    ("terminate_runs(null)", NULL),
    ("terminate_runs(array[null]::uuid[])", NULL),
    (f"terminate_runs({IDS}, repeat('r', 100000))", WRONG),
    ("pause_runs(null)", NULL),
    ("pause_runs(array[null]::uuid[])", NULL),
    (f"pause_runs({IDS}, repeat('r', 100000))", WRONG),
    ("resume_runs(null)", NULL),
    ("resume_runs(array[null]::uuid[])", NULL),
    ("set_pause(null, 'mail', true)", NULL),
    ("set_pause('queue', null, true)", NULL),
    ("set_pause('queue', 'mail', null)", NULL),
    ("set_pause('run', 'mail', true)", WRONG),
    ("set_pause('queue', 'no queue', true)", WRONG),
    ("decide_approval(null, 'approve', 'd', true)", NULL),
    (f"decide_approval({RUN}, null, 'd', true)", NULL),
    (f"decide_approval({RUN}, 'approve', null, true)", NULL),
    (f"decide_approval({RUN}, 'approve', 'd', null)", NULL),
    (f"decide_approval({RUN}, 'approve', '', true)", WRONG),
    (f"decide_approval({RUN}, 'approve', {LONG}, true)", WRONG),
    (f"decide_approval({RUN}, 'approve', 'd', true, p_values => '[]')", WRONG),
    (f"decide_approval({RUN}, 'approve', 'd', true, p_values => BAD)", WRONG),
    ("complete_activity(null)", NULL),
    ("complete_activity('nonsense')", WRONG),
    (f"complete_activity('{'-' * 36}:1:a')", WRONG),
    (f"complete_activity('{TOKEN}', BAD)", WRONG),
    ("fail_activity(null, 'why')", NULL),
    (f"fail_activity('{TOKEN}', 'why', null)", NULL),
    (f"fail_activity('{TOKEN}', repeat('m', 100000))", WRONG),
    (f"fork_run(null, {RUN})", NULL),
    (f"fork_run({RUN}, null)", NULL),
    (f"fork_run({RUN}, {RUN}, p_retry => null)", NULL),
    (f"fork_run({RUN}, {RUN}, p_version => 0)", WRONG),
    (f"fork_run({RUN}, {RUN}, p_input => BAD)", WRONG),
    (f"fork_run({RUN}, {RUN}, p_results => '[]')", WRONG),
    (f"fork_run({RUN}, {RUN}, p_results => BAD)", WRONG),
    ("recent_events(9223372036854775807, 1)", WRONG),
    ("recent_events(0, -1)", WRONG),
    (f"read_log({RUN}, 0, -1, 10)", WRONG),
    (f"read_tails({IDS}, array[0], -1, 10, 10)", WRONG),
    (f"list_activities({RUN}, -1)", WRONG),
    ("list_approvals(p_limit => -1)", WRONG),
    # Of flows here is what needs none; the rest is in tests/flows.
    ("create_flow(null)", NULL),
    ("get_flow('nobody', 1, -9223372036854775808)", WRONG),
    ("delete_flow(null)", NULL),
    ("delete_flow('f', null)", NULL),
    ("delete_flow('f', p_limit => 0)", WRONG),
    ("delete_flow('f', p_before => 9223372036854775807)", WRONG),
    (f"retry_flow(null, {RUN})", NULL),
    (f"retry_flow({RUN}, null)", NULL),
    (f"fork_flow(null, {RUN})", NULL),
    (f"fork_flow({RUN}, null)", NULL),
    (f"fork_flow({RUN}, {RUN}, p_input => BAD)", WRONG),
    (f"fork_flow({RUN}, {RUN}, p_results => '[]')", WRONG),
    (f"fork_flow({RUN}, {RUN}, p_results => BAD)", WRONG),
    ("ensure_flow(null, 1, 'h', '{}')", NULL),
    ("add_step('nobody', 'a')", MISSING),
    ("start_flow('nobody', '1')", MISSING),
    ("read_tasks('nobody', 1, 1)", MISSING),
    ("read_with_poll('nobody', 1, 1, 0)", MISSING),
    ("start_tasks('nobody', array[1], gen_random_uuid())", MISSING),
    (f"complete_task({RUN}, 'a', 0, '1')", MISSING),
    (f"fail_task({RUN}, 'a', 0, 'no')", MISSING),
    ("create_schedule(null, 'shop/order', '* * * * *')", NULL),
    ("create_schedule('shop/s', null, '* * * * *')", NULL),
    ("create_schedule('shop/s', 'shop/order')", WRONG),
    ("create_schedule('shop/no name', 'shop/order', '* * * * *')", WRONG),
    ("create_schedule('shop/s', 'shop/order', '* * * * *', 60)", WRONG),
    ("create_schedule('shop/s', 'shop/order', repeat('*', 100000))", WRONG),
    ("create_schedule('shop/s', 'shop/order', p_every_seconds => 0)", WRONG),
    ("create_schedule('shop/s', 'shop/order', p_every_seconds => 'nan')", WRONG),
    ("create_schedule('shop/s', 'shop/order', '* * * * *', p_input => BAD)", WRONG),
    ("create_schedule('shop/s', 'shop/order', '* * * * *', p_kind => 'cat')", WRONG),
    ("create_schedule('shop/s', 'shop/order', '* * * * *', p_overlap => 'cat')", WRONG),
    ("create_schedule('shop/s', 'a b', '* * * * *', p_kind => 'topic')", WRONG),
    ("create_schedule('s', 'a.b', '* * * * *', p_kind => 'topic')", WRONG),
    ("create_schedule('shop/s', 'a', '* * * * *', p_kind => 'topic', p_overlap => 'skip')", WRONG),
    ("create_schedule('shop/s', 'a', '* * * * *', p_kind => 'topic', p_queue => 'x')", WRONG),
    ("create_schedule('shop/s', 'a', '* * * * *', p_kind => 'topic', p_priority => 1)", WRONG),
    ("create_schedule('shop/s', 'a', '* * * * *', p_kind => 'topic', p_input => BAD)", WRONG),
    (
        "create_schedule('shop/s', 'a', '* * * * *', p_kind => 'topic', p_jitter_seconds => 1)",
        WRONG,
    ),
    ("create_schedule('shop/s', 'nobodys', '* * * * *', p_kind => 'queue')", "HFQ01"),
    ("create_schedule('shop/s', 'shop/order', '* * * * *', p_message_group => 'x')", WRONG),
    ("create_schedule('shop/s', 'shop/order', '* * * * *', p_max_missed => -1)", WRONG),
    ("create_schedule('shop/s', 'shop/order', '* * * * *', p_jitter_seconds => -1)", WRONG),
    (
        "create_schedule('shop/s', 'shop/order', '* * * * *', p_starts_at => 9223372036854775807)",
        WRONG,
    ),
    ("create_schedule('shop/s', 'shop/order', '* * * * *', p_priority => 9)", WRONG),
    ("create_schedule('shop/s', 'shop/order', '* * * * *', p_queue => 'no queue')", WRONG),
    ("create_schedule('shop/s', 'shop/order', '* * * * *', p_tags => '[null]')", WRONG),
    ("create_schedule('shop/s', 'shop/order', '* * * * *', p_headers => '[]')", WRONG),
    ("update_schedule(null, 'shop/order', '* * * * *')", NULL),
    ("update_schedule('shop/s', 'shop/order', '* * * * *', p_input => BAD)", WRONG),
    ("trigger_schedule(null)", NULL),
    ("trigger_schedule('shop/s', 9223372036854775807)", WRONG),
    ("trigger_schedule('shop/s', p_overlap => 'cat')", WRONG),
    ("backfill_schedule(null, 1, 2)", NULL),
    ("backfill_schedule('shop/s', null, 2)", NULL),
    ("backfill_schedule('shop/s', 2, 1)", WRONG),
    ("backfill_schedule('shop/s', 1, 9223372036854775807)", WRONG),
    ("cancel_backfills(null)", NULL),
    ("delete_schedule(null)", NULL),
    ("pause_schedule(null)", NULL),
    ("pause_schedule('shop/s', repeat('n', 100000))", WRONG),
    ("resume_schedule(null)", NULL),
    ("list_schedules(p_limit => -1)", WRONG),
    ("list_buckets(null)", NULL),
    ("set_limit(null, 'mail', 'concurrency', 1)", NULL),
    ("set_limit('queue', null, 'concurrency', 1)", NULL),
    ("set_limit('queue', 'mail', null, 1)", NULL),
    ("set_limit('cat', 'mail', 'concurrency', 1)", WRONG),
    ("set_limit('queue', 'no queue', 'concurrency', 1)", WRONG),
    ("set_limit('queue', 'mail', 'cat', 1)", WRONG),
    ("set_limit('queue', 'mail', 'concurrency')", WRONG),
    ("set_limit('queue', 'mail', 'concurrency', 0)", WRONG),
    ("set_limit('queue', 'mail', 'rate', 1)", WRONG),
    ("set_limit('queue', 'mail', 'rate', 1, 'nan')", WRONG),
    ("set_limit('queue', 'mail', 'concurrency', 1, p_key => 'a b c')", WRONG),
    ("set_limit('queue', 'mail', 'concurrency', 1, p_holds => 'cat')", WRONG),
    ("remove_limit(null, 'mail', 'concurrency')", NULL),
    ("remove_limit('queue', null, 'concurrency')", NULL),
    ("remove_limit('queue', 'mail', null)", NULL),
]

# What has nothing to refuse: every value has an answer.
ANSWERED = [
    "message_failures(null)",
    "message_failures(array[-1, null]::bigint[])",
    "find_webhook(null)",
    "publish('a.b', p_event_id => null)",
    "list_subscriptions()",
    "list_subscriptions('nothing', 'a.b', null, null)",
    "unsubscribe(null)",
    "unsubscribe(-1)",
    "list_deliveries()",
    "list_deliveries(true, -1, -1, 0)",
    "redrive_deliveries(array[]::bigint[])",
    "discard_deliveries(array[null]::bigint[])",
    "retry_plan(null)",
    "retry_plan(gen_random_uuid(), null)",
    "delete_queue('nothing')",
    "list_queues()",
    "list_queues('nothing')",
    "queue_metrics()",
    "ack(variadic '{}')",
    "nack('{}')",
    "extend('{}', 1)",
    "ack_deliveries(1, '{}')",
    f"ack_deliveries(1, {IDS})",
    f"ack_messages(array[1], {IDS}, array[1])",
    f"return_messages(array[1], {IDS})",
    f"extend_deliveries(array[1], {IDS}, 1)",
    "full_name(null)",
    "full_name('shop/order')",
    "find_run(null, null)",
    "find_run('', '')",
    "keyed_run_id(null, 'a')",
    f"keyed_run_id('order', {LONG})",
    "new_run_id()",
    "now()",
    "get_runs(null)",
    "get_runs(array[null]::uuid[])",
    "get_values(null)",
    "read_events(null, null)",
    f"read_events({IDS}, array[null]::int[])",
    f"read_events({IDS}, array[-5])",
    "list_workers()",
    "list_apps()",
    "read_catalogue(null)",
    "read_catalogue(array[null])",
    "declare_catalogue(null, null, null, null)",
    "declare_options(null, null, null, null, null, null)",
    "declare_retentions(null, null, null)",
    "queues_of_runs(array[null]::uuid[])",
    "list_pauses()",
    "full_name('shop/order')",
    "unserved()",
    "list_activities(null)",
    "list_approvals()",
    "recent_events(null, null)",
    "recent_log(null, null, null)",
    "recent_log(0, 1, -1)",
    "read_log(null, null, null, null)",
    f"read_log({RUN}, -5, 1, 2147483647)",
    "read_tails(null, null, null, null, null)",
    f"read_tails({IDS}, array[-2147483648], 1, 2147483647, 9223372036854775807)",
    f"flow_steps({IDS})",
    "delete_flow('nobody')",
    f"retry_flow({RUN}, {RUN}, 'nobody')",
    f"fork_flow({RUN}, {RUN}, 'nobody')",
    "get_flow(null)",
    "get_flow('nobody', -1)",
    "list_flows()",
    "requeue_stalled_tasks()",
    "now_micros()",
    "list_start_rules()",
    "list_start_rules('nobody')",
    "list_limits()",
    "remove_limit('queue', 'mail', 'rate')",
    "list_schedules()",
    "list_buckets('shop/nobody', 10000000000000000)",
    *(
        f"{function}_runs(array[{IDS}, {IDS}])"
        for function in ("cancel", "terminate", "pause", "resume")
    ),
    f"start_wait({RUN})",
    "delete_schedule('shop/nobody')",
    "pause_schedule('shop/nobody')",
    "resume_schedule('shop/nobody')",
    "trigger_schedule('shop/nobody')",
    "backfill_schedule('shop/nobody', 1, 2)",
    "cancel_backfills('shop/nobody')",
    "update_schedule('shop/nobody', 'shop/order', '* * * * *')",
]


def calls() -> list[tuple[str, str]]:
    """Return each refused call, with each unreadable text in its place."""
    return [
        (call.replace("BAD", f"({text})::json"), state)
        for call, state in REFUSED
        for text in (UNREADABLE if "BAD" in call else [""])
    ]


async def refusal(connection: asyncpg.Connection, call: str) -> asyncpg.PostgresError:
    """Return what a call raises; nothing of it stays."""
    undone = connection.transaction()
    await undone.start()
    try:
        await connection.fetch(f"select * from holdfast.{call}")
    except asyncpg.PostgresError as error:
        return error
    finally:
        await undone.rollback()
    raise AssertionError(f"{call} is answered")


def escaped(call: str) -> str:
    """Return a call whose literals mean the same whatever the session makes of backslashes."""
    return re.sub(
        r"(?<!E)'[^']*\\[^']*'", lambda literal: "E" + literal[0].replace("\\", "\\\\"), call
    )


async def test_the_longest_names_are_taken(scene: Scene) -> None:
    longest = "n" * 128
    assert await scene.value(
        "select holdfast.start_run($1, p_queue => $2)", *(f"{longest}/{longest}", longest)
    )


async def test_no_pattern_counts_far(scene: Scene) -> None:
    """A bound of 128 makes an automaton of as many states, at each call: dearer than a start."""
    counting = await scene.value(
        "select count(*) from pg_proc p where p.pronamespace = 'holdfast'::regnamespace"
        " and p.prokind = 'f' and pg_get_functiondef(p.oid) ~ '~ ''[^'']*\\{\\d*,?\\d{2,}\\}'"
    )
    assert counting == 0


@pytest.mark.parametrize("standard_strings", ["on", "off"])
async def test_impossible_values_are_refused_by_the_function_that_gets_them(
    database_url: str, standard_strings: str
) -> None:
    """Every public function, every kind of value that no reader could read."""
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("select holdfast.create_queue('sieve', p_filters => true)")
        await connection.execute(f"set standard_conforming_strings = {standard_strings}")
        found = {call: (await refusal(connection, escaped(call))).sqlstate for call, _ in calls()}
    finally:
        await connection.close()
    assert found == dict(calls())


async def test_each_function_of_the_page_is_tried(scene: Scene) -> None:
    page = Path(__file__).parents[2] / "docs/reference/sql.md"
    named = set(re.findall(r"\b([a-z]+(?:_[a-z]+)*)\(", page.read_text()))
    exist = set(
        await scene.watcher.connection.fetchval(
            "select array_agg(proname::text) from pg_proc "
            "where pronamespace = 'holdfast'::regnamespace"
        )
    )
    tried = {re.split(r"\(", call)[0] for call, _ in REFUSED} | {
        call.split("(")[0] for call in ANSWERED
    }
    assert named & exist <= tried


@pytest.mark.parametrize("call", ANSWERED)
async def test_what_has_an_answer_is_answered(scene: Scene, call: str) -> None:
    await scene.watcher.connection.fetch(f"select * from holdfast.{call}")


async def test_what_is_just_possible_is_taken(scene: Scene) -> None:
    """A cut emoji is refused, a whole one is not; 256 levels are not too many."""
    connection = scene.watcher.connection
    for text in (
        """'"\\ud83d\\ude00 \\\\u0000"'""",
        "repeat('[', 256) || repeat(']', 256)",
        "'[' || repeat('{\"a\":[1]},', 2000) || '1]'",
        "'\"' || repeat('[', 3000) || '\"'",
    ):
        await connection.execute(f"select holdfast.start_run('shop/order', ({text})::json)")
    name, key = "shop/" + "n" * 128, "k" * 1024
    run_id = await connection.fetchval("select holdfast.start_run($1, p_key => $2)", name, key)
    sent = await connection.fetchval(
        "select outcomes from holdfast.signal_runs(array[$1::uuid], array[$2], array['1']::json[], "
        "array[$3])",
        run_id,
        "n" * 128,
        key,
    )
    assert sent == ["delivered"]


async def test_a_refusal_is_an_error_of_ours_in_our_words(scene: Scene) -> None:
    run_id = await start(scene.store)
    with pytest.raises(
        InvalidInput, match=r"^the payload has a lone surrogate: it is not Unicode$"
    ):
        await signal(scene.store, run_id, payload='"\\ud800"')
    with pytest.raises(InvalidInput, match=r"^a workflow's version is 1 or more, not 0$"):
        await start(scene.store, version=0)
    with pytest.raises(RunExists, match="is one of workflow order, not of other") as caught:
        await scene.store.start_runs([new_run(run_id=run_id, name="other")])
    assert caught.value.run_id == run_id


# Functions without a path of their own: one is inlined, and only called by functions that have one;
# those of CHECKs are called for each row, and name the schemas of their operators.
WITHOUT_PATH = {"_free_ranges", "_is_possible_run", "_is_possible_task"}


@pytest.mark.parametrize("setting", ["search_path=pg_catalog, pg_temp", "jit=off"])
async def test_no_function_heeds_what_its_session_has_set(scene: Scene, setting: str) -> None:
    """Where `jit` was on, a start in a session of a user, or behind a pooler, took 70 ms."""
    found = await scene.watcher.connection.fetch(
        "select proname from pg_proc where pronamespace = 'holdfast'::regnamespace "
        "and prosqlbody is null and not coalesce(proconfig, '{}') @> array[$1::text]",
        setting,
    )
    assert {row["proname"] for row in found} == WITHOUT_PATH


EXPRESSIONS = """
    select proname as name, array(select format_type(t, null) from unnest(proargtypes) t) as types
    from pg_proc
    where pronamespace = 'holdfast'::regnamespace and prosqlbody is not null and not proretset
        and pg_get_function_sqlbody(oid) !~ '\\mSELECT\\M'
"""


async def test_each_function_that_is_an_expression_is_inlined(scene: Scene) -> None:
    """Else each statement that calls it parses and plans it: a third of what a start took."""
    connection = scene.watcher.connection
    found = await connection.fetch(EXPRESSIONS)
    assert len(found) > 50
    called: list[str] = []
    for name, types in found:
        columns = [f"a{place}" for place in range(len(types))]
        call = f"holdfast.{name}({', '.join(columns)})"
        given = ", ".join(map(" ".join, zip(columns, types, strict=True)))
        rows = f"json_to_record('{{}}') as u ({given})" if given else "generate_series(1, 1)"
        plan = await connection.fetch(f"explain (verbose) select {call} from {rows}")
        if any(re.search(rf"\b{name}\(", line) for (line,) in plan):
            called.append(name)
    assert called == []


@pytest.mark.parametrize(
    ("table", "change"),
    [
        *(("runs", f"kind = '{kind}'") for kind in ("", "step", "Flow")),
        *(("runs", f"priority = {priority}") for priority in (-1, 5)),
        *(("runs", f"status = '{status}'") for status in ("ended", "completed", "failed")),
        ("runs", "completed_at = now()"),
        ("runs", "output = '1'"),
        ("runs", "error = '{}'"),
        ("runs", "status = 'failed', completed_at = now(), output = '1'"),
        ("runs", "status = 'completed', completed_at = now(), error = '{}'"),
        ("runs", "parent_run_id = run_id"),
        ("runs", "parent_key = 'a'"),
        ("runs", "parent_close = 'cancel'"),
        ("runs", "parent_run_id = run_id, parent_key = 'a'"),
        ("runs", "parent_run_id = run_id, parent_close = 'cancel'"),
        ("runs", "parent_run_id = run_id, parent_key = 'a', parent_close = 'keep'"),
        *(("tasks", f"kind = '{kind}'") for kind in ("", "queue")),
        *(("tasks", f"priority = {priority}") for priority in (-1, 5)),
        ("tasks", "attempts = -1"),
        ("tasks", "worker = 'ann'"),
    ],
)
async def test_no_row_is_impossible(scene: Scene, table: str, change: str) -> None:
    await start(scene.store)
    with pytest.raises(asyncpg.CheckViolationError):
        await scene.watcher.connection.execute(f"update holdfast.{table} set {change}")


async def test_operators_of_others_are_not_used(scene: Scene, ann: ManualWorker) -> None:
    """Better matches than PostgreSQL's own, and found first."""
    connection = scene.watcher.connection
    await connection.execute("select holdfast.create_queue('sieve', p_filters => true)")
    for call in ANSWERED:  # the driver learns types with its own operators
        await connection.fetch(f"select * from holdfast.{call}")
    await connection.fetch(
        "select null::bigint[], null::json[], null::timestamptz[], null::boolean[]"
    )
    await connection.execute(HOSTILE)
    await connection.execute("set search_path = public, pg_catalog")
    run_id = await connection.fetchval(
        "select holdfast.start_run('shop/order', '{}', p_key => 'o-7', p_delay_seconds => 0.5)"
    )
    assert await connection.fetchval("select holdfast.new_run_id()") != run_id
    assert await connection.fetchval("select holdfast.keyed_run_id('shop/order', 'o-7')") == run_id
    for call in ANSWERED:
        await connection.fetch(f"select * from holdfast.{call}")
    for call, state in calls():
        assert (await refusal(connection, call)).sqlstate == state, call
    await connection.execute("update holdfast.runs set kind = kind")
    await connection.execute("update holdfast.tasks set kind = kind")
    ids = f"array['{run_id}']::uuid[]"
    for call in (
        f"signal_runs({ids}, array['a'], array['1']::json[], array['s'])",
        f"get_runs({ids})",
        f"pause_runs({ids})",
        f"resume_runs({ids})",
        f"fork_run('{run_id}', holdfast.new_run_id())",
        f"cancel_runs({ids})",
    ):
        await connection.fetch(f"select * from holdfast.{call}")


HOSTILE = """
create function public.stolen(smallint, smallint) returns boolean
    language plpgsql as $$ begin raise 'an operator of others'; end $$;
create operator public.= (leftarg = smallint, rightarg = smallint, function = public.stolen);
create function public.stolen(boolean, boolean) returns boolean
    language plpgsql as $$ begin raise 'an operator of others'; end $$;
create operator public.= (leftarg = boolean, rightarg = boolean, function = public.stolen);
create function public.stolen(bigint, float8) returns float8
    language plpgsql as $$ begin raise 'an operator of others'; end $$;
create operator public./ (leftarg = bigint, rightarg = float8, function = public.stolen);
create function public.stolen(bytea, bytea) returns bytea
    language plpgsql as $$ begin raise 'an operator of others'; end $$;
create operator public.|| (leftarg = bytea, rightarg = bytea, function = public.stolen);
create function public.stolen(text, text) returns boolean
    language plpgsql as $$ begin raise 'an operator of others'; end $$;
create operator public.= (leftarg = text, rightarg = text, function = public.stolen);
create function public.stolen(int, int) returns int
    language plpgsql as $$ begin raise 'an operator of others'; end $$;
create operator public.& (leftarg = int, rightarg = int, function = public.stolen);
create operator public.| (leftarg = int, rightarg = int, function = public.stolen);
create operator public.+ (leftarg = int, rightarg = int, function = public.stolen);
create function public.stolen(float8, int) returns float8
    language plpgsql as $$ begin raise 'an operator of others'; end $$;
create operator public.* (leftarg = float8, rightarg = int, function = public.stolen);
create function public.set_byte(bytea, int, int) returns bytea
    language plpgsql as $$ begin raise 'a function of others'; end $$;
create function public.floor(float8) returns float8
    language plpgsql as $$ begin raise 'a function of others'; end $$;
create function public.to_timestamp(float8) returns timestamptz
    language plpgsql as $$ begin raise 'a function of others'; end $$;
"""


# What was written before it was refused

# What is 400 deep every interpreter could read, and what is 2,000 deep only some.
BAD = {
    "surrogate": '"\\ud800"',
    "deep": "[" * 400 + "]" * 400,
    "deeper": "[" * 2000 + "]" * 2000,
    "null": None,
}


async def write_signal(scene: Scene, run_id: UUID, payload: str | None, name: str = "go") -> None:
    """Write a signal as `signal_runs` once did."""
    text = None if payload is None else f'{{"signal_name":"{name}","input":{payload}}}'
    await scene.watcher.connection.execute(
        "insert into holdfast.events (run_id, idx, event_type, details, at) "
        "select $1, max(idx) + 1, 'SignalReceived', $2, now() "
        "from holdfast.events where run_id = $1",
        run_id,
        text,
    )
    await scene.watcher.connection.execute(
        "update holdfast.tasks set visible_at = now() where run_id = $1 and worker is null", run_id
    )


@pytest.mark.parametrize("payload", BAD.values(), ids=BAD.keys())
async def test_a_claim_hands_out_the_runs_beside_one_that_cannot_be_read(
    scene: Scene, ann: ManualWorker, payload: str | None
) -> None:
    """In one answer with it, as the tail of a run that its worker has in its cache."""
    run_ids = [await start(scene.store) for _ in range(5)]
    for task in (await ann.claim()).tasks:
        await ann.commit(task, step(), then=Suspend(awaiting=("go",)))
    for run_id in run_ids[1:]:
        await signal(scene.store, run_id, "go")
    await write_signal(scene, run_ids[0], payload)
    tasks = {task.run_id: task for task in (await ann.claim()).tasks}
    assert tasks.keys() == set(run_ids)
    assert tasks[run_ids[0]].tail[-1] == (await log(scene.store, run_ids[0]))[-1]


@pytest.mark.parametrize("payload", BAD.values(), ids=BAD.keys())
async def test_a_commit_answers_the_runs_beside_one_that_cannot_be_read(
    scene: Scene, ann: ManualWorker, payload: str | None
) -> None:
    run_ids = [await start(scene.store) for _ in range(3)]
    tasks = {task.run_id: task for task in (await ann.claim()).tasks}
    await write_signal(scene, run_ids[0], payload)
    await signal(scene.store, run_ids[1], "go")
    turns = [
        TurnCommit(run_id, tasks[run_id].lease_no, 1, [step()], Suspend()) for run_id in run_ids
    ]
    committed = await scene.store.commit("ann", uuid4(), turns)
    assert committed.refused.keys() == set(run_ids[:2])
    [event] = committed.refused[run_ids[0]].tail
    assert event.type == "SignalReceived"
    assert event.details == (await log(scene.store, run_ids[0]))[-1].details


app = App("edge")
calls_made: list[str] = []


@app.step
async def note(name: str) -> None:
    calls_made.append(name)


@app.workflow
async def waits(ctx: Context, name: str) -> object:
    await note(name)
    return await ctx.wait_for_signal("go")


@app.workflow
async def renews(ctx: Context, rounds: int) -> object:
    await ctx.wait_for_signal("begin")
    if rounds:
        ctx.continue_as_new(rounds - 1)
    return await ctx.wait_for_signal("go")


@pytest.mark.parametrize("payload", BAD.values(), ids=BAD.keys())
async def test_a_run_that_cannot_be_read_is_stuck_alone(scene: Scene, payload: str | None) -> None:
    """Its neighbours end, nothing runs twice, no lease is lost; a fork says why it is refused."""
    calls_made.clear()
    async with Client(app, store=scene.store) as client, running(app, scene):
        handles = [await client.start(waits, str(n)) for n in range(20)]
        await until(client, handles[0].run_id, "waiting")
        bad = handles[0].run_id
        await write_signal(scene, bad, payload)
        for handle in handles[1:]:
            await handle.signal("go", 1)
        assert [await handle.result("120s") for handle in handles[1:]] == [1] * 19
        await until(client, bad, "stuck")
        run = await client.runs.get(bad)
        assert run.wait is not None
        assert "cannot be read, SignalReceived" in (run.wait.stuck or "")
        with pytest.raises(ForkRefused, match="no worker can read"):
            await client.runs.fork(bad)
        length = len(await client.runs.log(bad))
        forked = await client.runs.fork(bad, index=length - 1)
        await forked.signal("go", 2)
        assert await forked.result("120s") == 2
    assert sorted(calls_made, key=int) == [str(n) for n in range(20)]
    lost = "select count(*) from holdfast.events where event_type = 'WorkerLost'"
    assert await scene.value(lost) == 0


async def test_an_unread_nul_does_not_block_a_run_that_continues_as_new(scene: Scene) -> None:
    async with Client(app, store=scene.store) as client, running(app, scene):
        handle = await client.start(renews, 1)
        await until(client, handle.run_id, "waiting")
        await write_signal(scene, handle.run_id, '"a\\u0000b"')
        await handle.signal("begin")
        await asyncio.sleep(0)
        while (await client.runs.get(handle.run_id)).status != "continued":
            await asyncio.sleep(0.02)
        await handle.signal("begin")
        assert await handle.result("120s") == "a\ufffdb"


async def test_one_input_that_jsonb_cannot_hold_hides_no_other(scene: Scene) -> None:
    good = await start(scene.store, input='{"a":1,"b":2}')
    for text in ('"\\ud800"', '{"a":1,"b":"\\u0000"}', '{"a":1e200000}'):
        run_id = await start(scene.store)
        await scene.watcher.connection.execute(
            "update holdfast.runs set input = $2 where run_id = $1", run_id, text
        )
    found = await scene.store.list_runs(RunFilter(input_contains='{"a":1}'))
    assert [run.run_id for run in found.runs] == [good]


async def test_invalid_headers_hide_no_run(scene: Scene) -> None:
    run_ids = {await start(scene.store) for _ in range(2)}
    await scene.watcher.connection.execute(
        "update holdfast.runs set headers = '[1]' where run_id = $1", min(run_ids)
    )
    found = await scene.store.list_runs(RunFilter())
    assert {run.run_id for run in found.runs} == run_ids


async def test_a_workflow_of_version_0_does_not_take_a_worker_of_activities_along(
    scene: Scene,
) -> None:
    """Its handler is that of the activity of its name."""
    remote = App("remote")

    @remote.activity
    async def shared() -> int:
        return 7

    @remote.workflow
    async def calls_it(ctx: Context) -> int:
        return await shared()

    run_id = await start(scene.store, name="remote/shared")
    await scene.watcher.connection.execute(
        "update holdfast.tasks set handler = 'remote/shared@0' where run_id = $1", run_id
    )
    await scene.watcher.connection.execute(
        "update holdfast.runs set version = 0 where run_id = $1", run_id
    )
    async with Client(remote, store=scene.store) as client, running(remote, scene):
        assert await client.run(calls_it, wait="30s") == 7
        await until(client, run_id, "stuck")


@asynccontextmanager
async def running(app: App, scene: Scene) -> AsyncGenerator[None]:
    """Run a worker for the length of the block."""
    worker = Worker(app, scene.store)
    await worker.start()
    try:
        yield
    finally:
        await worker.stop()


async def until(client: Client, run_id: UUID, state: str) -> None:
    """Wait until a run is in a state."""
    async with asyncio.timeout(30):
        while (await client.runs.get(run_id)).state != state:
            await asyncio.sleep(0.02)
