"""What a site relies on. `test_site.py` runs these, as `manage.py test` does."""

import json
import time
from datetime import timedelta
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase, TransactionTestCase
from django.utils import timezone
from mail.models import Sent
from mail.tasks import (
    bad_result,
    count,
    fail,
    lose_connection,
    read_in_chunks,
    send,
    send_async,
    wrapped,
)
from mail.workflows import TAKEN, app, keep_all, note, note_there, tell_all, twice

from holdfast import RunEnded, SyncClient
from holdfast.database.urls import read_url
from holdfast.django.connection import database_url
from holdfast.django.framework import (
    InvalidTask,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from holdfast.django.starting import start
from holdfast.django.testing import delete_tasks, run_tasks

try:
    from django.tasks.exceptions import TaskResultMismatch
except ImportError:
    from django_tasks.exceptions import TaskResultMismatch


class Refused(Exception):
    """Rolls a transaction back."""


def run(result):
    """Run tasks until one has ended, with the pauses before its attempts."""
    while not result.is_finished:
        run_tasks()
        result.refresh()
        time.sleep(0.05)
    return result


def rows(query):
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchall()


class Tasks(TransactionTestCase):
    def setUp(self):
        delete_tasks()

    def test_a_task_exists_once_its_transaction_commits(self):
        with transaction.atomic():
            result = send.enqueue("a", copies=2)
            assert send.get_result(result.id).status == "READY"
        before = timezone.now()
        run_tasks()
        found = send.get_result(result.id)
        assert (found.status, found.return_value) == ("SUCCESSFUL", ["a", "a"])
        assert (found.args, found.kwargs) == (["a"], {"copies": 2})
        assert (found.attempts, found.errors) == (1, [])
        moments = [found.enqueued_at, found.started_at, found.last_attempted_at, found.finished_at]
        assert moments == sorted(moments)
        assert found.enqueued_at < before
        assert rows("select tags from holdfast.runs")[0][0] == ["mail.tasks.send"]

    def test_the_rows_and_the_record_of_a_transaction_are_one_commit(self):
        Sent.objects.create(id=TAKEN, text="before")
        start(keep_all, "a")
        run_tasks()
        [(kinds,)] = rows("select output::jsonb from holdfast.runs")
        assert [kind.rpartition(".")[2] for kind in json.loads(kinds)] == [
            "AssertionError",
            "ConfigurationError",
            "TransactionManagementError",
            "ConfigurationError",
        ]
        assert sorted(Sent.objects.values_list("text", flat=True)) == ["a", "a", "before"]
        ended = "select key from holdfast.events where event_type = 'StepCompleted' order by idx"
        assert rows(ended) == [("keep",), ("keep_strictly",)]

    def test_a_callback_that_fails_after_the_commit_does_not_fail_the_step(self):
        """Fault: the log had StepCompleted and StepFailed, or a failure and its rows."""
        Sent.objects.create(id=TAKEN, text="before")
        start(tell_all, "a")
        with self.assertLogs("holdfast.run", "ERROR") as logged:
            run_tasks()
        assert rows("select status from holdfast.runs") == [("completed",)]
        assert sorted(Sent.objects.values_list("text", flat=True)) == ["a", "a", "before"]
        ends = "select event_type from holdfast.events where event_type like 'Step%' order by idx"
        assert rows(ends) == [("StepCompleted",)] * 2
        assert sum("a callback of on_commit failed" in line for line in logged.output) == 2

    def test_a_task_of_a_transaction_that_is_rolled_back_does_not_exist(self):
        made = []

        def give_up():
            with transaction.atomic():
                made.extend((send.enqueue("a"), start(twice, "b", key="b")))
                raise Refused

        with pytest.raises(Refused):
            give_up()
        result, run_id = made
        with pytest.raises(TaskResultDoesNotExist):
            send.get_result(result.id)
        run_tasks()
        assert Sent.objects.count() == 0
        assert rows(f"select 1 from holdfast.runs where run_id = '{run_id}'") == []

    def test_a_task_is_tried_again_and_knows_its_attempt(self):
        result = run(count.enqueue("why"))
        assert result.status == "SUCCESSFUL"
        assert result.return_value == {"attempt": 2, "id": result.id, "text": "why"}
        [error] = result.errors
        assert error.exception_class is ValueError
        assert "ValueError: why" in error.traceback
        assert result.attempts == 2

    def test_a_task_fails_after_its_last_attempt(self):
        result = run(fail.enqueue("why"))
        assert (result.status, len(result.errors), result.attempts) == ("FAILED", 2, 2)
        with self.assertRaisesMessage(ValueError, "Task failed"):
            _ = result.return_value

    def test_a_result_that_json_cannot_hold_fails_the_task(self):
        result = run(bad_result.enqueue())
        assert result.status == "FAILED"
        assert result.errors[-1].exception_class is TypeError

    def test_a_lost_connection_is_not_used_again(self):
        assert run(lose_connection.enqueue()).return_value == 1
        assert run(lose_connection.enqueue()).return_value == 1

    def test_the_end_of_an_asynchronous_task_leaves_connections_to_the_others(self):
        """Fault: the connection that they share was closed in the middle of what one read."""
        Sent.objects.bulk_create(Sent(text=f"{number}") for number in range(3))
        reading, writing = read_in_chunks.enqueue(), send_async.enqueue("between")
        assert run(writing).attempts == 1
        result = run(reading)
        assert (result.status, result.attempts, result.errors) == ("SUCCESSFUL", 1, [])

    def test_asynchronous_code_enqueues_and_runs(self):
        async def enqueue():
            result = await send_async.aenqueue("a")
            assert (await send_async.aget_result(result.id)).status == "READY"
            return result

        result = run(async_to_sync(enqueue)())
        assert result.return_value == "a"
        assert rows("select queue, priority from holdfast.runs") == [("mail", 1)]

    def test_a_task_runs_after_a_moment(self):
        naive = timezone.localtime().replace(microsecond=0) + timedelta(hours=1)
        result = send.using(run_after=naive).enqueue("a")
        run_tasks()
        result.refresh()
        assert result.status == "READY"
        assert result.task.run_after == naive
        with SyncClient(database_url("default")) as client:
            assert client.runs.get(result.id).due_at == naive

    def test_moments_have_no_time_zone_if_the_site_has_none(self):
        with self.settings(USE_TZ=False):
            result = run(send.enqueue("a"))
            assert result.enqueued_at <= result.started_at <= result.finished_at <= timezone.now()

    def test_urgent_tasks_come_first(self):
        for priority in (100, 50, 0, -50, -100):
            send.using(priority=priority).enqueue("a")
        found = rows("select priority from holdfast.tasks order by run_id")
        assert found == [(0,), (1,), (2,), (3,), (4,)]

    def test_what_cannot_be_done_is_refused_and_leaves_nothing(self):
        with self.assertRaisesMessage(InvalidTask, "one of -100, -50, 0, 50, 100, not 7"):
            send.using(priority=7)
        with pytest.raises(InvalidTask):
            send.using(queue_name="none")
        with pytest.raises(TypeError):
            send.enqueue(object())
        with pytest.raises(ImproperlyConfigured):
            send.using(backend="wrong").enqueue("a")
        assert rows("select 1 from holdfast.runs") == []

    def test_ids_that_mean_no_task_have_no_result(self):
        other = str(start(note, "a"))
        for unknown in ("7", "", "0198c0de-7000-7000-8000-000000000000", other):
            with pytest.raises(TaskResultDoesNotExist):
                send.get_result(unknown)
        with pytest.raises(TaskResultMismatch):
            send.get_result(fail.enqueue("a").id)

    def test_a_task_that_is_ended_by_an_operator_has_failed(self):
        result = send.enqueue("a")
        with SyncClient(database_url("default")) as client:
            client.runs.terminate(result.id)
            with pytest.raises(RunEnded):
                client.signal(result.id, "go")
        result.refresh()
        assert (result.status, result.attempts) == ("FAILED", 0)

    def test_a_task_that_is_made_of_a_function_runs(self):
        assert run(wrapped.enqueue()).status == "SUCCESSFUL"

    def test_signals_are_sent(self):
        heard = []

        def hear(signal, task_result, **_):
            names = {task_enqueued: "enqueued", task_started: "started", task_finished: "finished"}
            heard.append((names[signal], task_result.status))
            if signal is task_finished:
                raise Refused  # must not repeat the task

        for signal in (task_enqueued, task_started, task_finished):
            signal.connect(hear)
            self.addCleanup(signal.disconnect, hear)
        assert run(count.enqueue("a")).attempts == 2
        attempts = [("started", "RUNNING"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]
        assert heard == [("enqueued", "READY"), *attempts]


class Workflows(TransactionTestCase):
    def setUp(self):
        delete_tasks()

    def test_a_workflow_starts_in_the_transaction_once_for_a_key(self):
        with transaction.atomic():
            Sent.objects.create(text="before")
            first = start(twice, "a", key="k")
            assert start("twice", "b", key="k") == first
        run_tasks()
        with SyncClient(database_url("default"), app=app) as client:
            assert client.result(first, timeout="30s") == 3
        assert start(note, input={"text": "b"}, key="n") == start(note, "b", key="n")

    def test_a_start_is_part_of_a_transaction_that_is_committed_by_hand(self):
        transaction.set_autocommit(False)
        try:
            lost = start(note, "a")
            transaction.rollback()
            kept = start(note, "b")
            transaction.commit()
        finally:
            transaction.set_autocommit(True)
        assert lost != kept
        assert rows("select run_id from holdfast.runs") == [(kept,)]

    def test_a_start_is_refused_in_a_transaction_that_can_only_be_rolled_back(self):
        with transaction.atomic():
            transaction.set_rollback(True)
            with pytest.raises(TransactionManagementError):
                start(note, "a")

    def test_the_workers_of_the_queue_that_the_code_declares_are_woken(self):
        run_tasks()  # the app signs on
        with mock.patch("holdfast.django.starting.notify_within", autospec=True) as notified:
            start("note_there", {"text": "a"})
            start(note_there, "b")
            start("note_there", {"text": "c"}, queue="other")
        woken = [each.payload for call in notified.call_args_list for each in call.args[2]]
        assert woken == ["notes", "notes", "other"]


class Within(TestCase):
    """A test whose transaction never commits sees what it has enqueued."""

    def test_a_task_is_there_and_has_not_run(self):
        result = send.enqueue("a")
        run_tasks()
        result.refresh()
        assert result.status == "READY"


class Settings(TestCase):
    def test_wrong_settings_are_found_by_the_checks(self):
        found = {each.id: each.msg for each in task_backends["wrong"].check()}
        assert "there is no option retries" in found["holdfast.E1"]
        assert "'lite' is SQLite" in found["holdfast.E3"]
        assert "holdfast worker` does not run its tasks" in found["holdfast.W1"]
        assert list(task_backends["default"].check()) == []
        assert {each.id for each in run_checks() if each.id[:8] == "holdfast"} == set(found)

    def test_the_url_of_a_database_has_what_its_settings_say(self):
        given = {
            "NAME": "shop",
            "USER": "ann",
            "PASSWORD": "p@ss/w:rd&?",
            "HOST": "db.example",
            "PORT": "5433",
            "OPTIONS": {"sslmode": "require", "assume_role": "writer", "pool": True},
        }
        with mock.patch.dict(connection.settings_dict, given):
            found = read_url(database_url("default"))
        assert (found.hosts, found.database) == ((("db.example", 5433),), "shop")
        assert (found.user, found.password) == ("ann", "p@ss/w:rd&?")
        assert found.parameters.driver["sslmode"] == "require"
        assert found.parameters.settings["options"] == "-c role=writer"

    def test_the_command_line_is_a_process_of_its_own(self):
        with self.assertRaisesMessage(CommandError, "run_tasks()"):
            call_command("holdfast", "worker")
