"""For tests of a site: run what is due in the database of the tests, and empty it."""

from __future__ import annotations

from typing import Final

from holdfast.database.scripts import check_schema_name
from holdfast.django.apps import places
from holdfast.django.connection import database_url, find_connection
from holdfast.django.running import task_app
from holdfast.sweeping import sweep_sync
from holdfast.worker import SweepResult

_KEPT: Final = ("schema_functions", "schema_migrations", "sweeper")

_TRUNCATE: Final = """
do $body$
declare
    v_table text;
    v_is_filled bool;
begin
    for v_table in
        select c.oid::regclass::text from pg_catalog.pg_class c
        where c.relnamespace = '"{schema}"'::regnamespace and c.relkind = 'r'
            and c.relname <> all ('{{{kept}}}'::text[])
    loop
        execute 'select exists (select from ' || v_table || ')' into v_is_filled;
        if v_is_filled then
            execute 'truncate ' || v_table;
        end if;
    end loop;
end
$body$
"""


def run_tasks() -> SweepResult:
    """Run the tasks and the workflows that are due, in threads of this process.

    They see what is committed: for a `TransactionTestCase`. Returns what was done when nothing is
    due any more, or after a minute.

    ```python
    mail = send_mail.enqueue("ann", "hello")
    run_tasks()
    mail.refresh()
    ```
    """
    place = places()[0]
    return sweep_sync(task_app(place.app), database_url(place.database), schema=place.schema)


def delete_tasks() -> None:
    """Delete all tasks and runs, and all else that holdfast has, of the database of the tests.

    Call it in `setUp` of a `TransactionTestCase`, which empties the tables of models only.
    """
    place = places()[0]
    schema = check_schema_name(place.schema)
    with find_connection(place.database).cursor() as cursor:
        cursor.execute(_TRUNCATE.format(schema=schema, kept=",".join(_KEPT)))
