"""Start runs in Django's own transaction."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cache, partial
from typing import Any, TypeAlias, Unpack, cast
from uuid import UUID

from holdfast.client import Client, RunHandle
from holdfast.client.transactions import notify_within, queues_within
from holdfast.definitions.starts import StartOptions, ToStart
from holdfast.django.apps import Place, places
from holdfast.django.connection import find_connection, store_on, told_if_missing
from holdfast.django.running import task_app
from holdfast.store.port import WORK_TOPIC
from holdfast.sync.portal import finish
from holdfast.types import Notice

_Start: TypeAlias = Callable[..., Coroutine[object, object, RunHandle[object]]]


def start(workflow: ToStart, *args: Any, **options: Unpack[StartOptions]) -> UUID:
    """Start a run of a workflow or a job over Django's connection, and return its id.

    Within `transaction.atomic` the run exists once that commits, and workers are woken then. The
    database is that of the first backend of holdfast in `TASKS`, by default `default`. Arguments
    and options are those of `SyncClient.start`, which it raises from.

    ```python
    with transaction.atomic():
        order = Order.objects.create(customer="ann")
        start(checkout, order.pk, key=f"order-{order.pk}")
    ```
    """
    return start_at(places()[0], workflow, *args, **options)


def start_at(place: Place, workflow: ToStart, *args: Any, **options: Any) -> UUID:
    """Start a run in the database of a place; see `start`."""
    connection = find_connection(place.database)
    begin = cast("_Start", _client(place).start)
    with told_if_missing(connection, place.schema):
        found = begin(workflow, *args, **options, connection=connection.connection)
        run_id = finish(found).run_id
    queue = cast("str | None", options.get("queue") or getattr(workflow, "queue", None))
    wake = partial(_wake, place, run_id, queue)
    if connection.in_atomic_block or connection.get_autocommit():
        # In a transaction of its own: the commits of those that notify wait for each other.
        connection.on_commit(wake, robust=True)
    else:  # the caller commits by hand, where Django has no `on_commit`
        wake()
    return run_id


@cache
def _client(place: Place) -> Client:
    """Return a client without connections of its own."""
    client = Client(store=store_on(place.database, place.schema), app=task_app(place.app))
    finish(client.open())
    return client


def _wake(place: Place, run_id: UUID, queue: str | None) -> None:
    """Wake the workers of a queue; None is that which the code of a start by name declares."""
    connection, schema = find_connection(place.database).connection, place.schema
    queues = {queue} if queue else finish(queues_within(connection, schema, [run_id]))
    finish(notify_within(connection, schema, [Notice(WORK_TOPIC, each) for each in queues]))
