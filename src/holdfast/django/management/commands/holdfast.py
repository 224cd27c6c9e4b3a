"""`manage.py holdfast …`: the command line of holdfast, on the database of Django."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from typing import Any, Final, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from holdfast.django.apps import places
from holdfast.django.connection import database_url
from holdfast.django.settings import EMBEDDED

_APP: Final = "holdfast.django.worker:app"
_WITH_APP: Final = ("worker", "dev")  # whose first argument is an app
_OF_DJANGO: Final = ("--settings", "--pythonpath")


class Command(BaseCommand):
    """Runs `holdfast` with the rest of the arguments."""

    help = (
        "Run the command line of holdfast on Django's database: `manage.py holdfast worker` runs "
        "the tasks, `manage.py holdfast --help` lists the commands."
    )

    def run_from_argv(self, argv: list[str]) -> None:
        """Become `holdfast` with the arguments, without those of Django."""
        rest, given = list[str](), iter(argv[2:])
        for each in given:
            if each in _OF_DJANGO:
                next(given, None)
            elif not each.startswith(tuple(f"{name}=" for name in _OF_DJANGO)):
                rest.append(each)
        place = places()[0]
        if rest[:1] and rest[0] in _WITH_APP and (rest[1:2] or ["-"])[0].startswith("-"):
            rest.insert(1, _APP)
        if place.schema != "holdfast":
            rest = ["--schema", place.schema, *rest]
        # In the environment: other users can see the arguments of a process, and the processes that
        # this one starts need the same. An embedded database is found, and held, as always.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment["HOLDFAST_COMMAND"] = "python manage.py holdfast"
        if EMBEDDED not in connections[place.database].settings_dict:
            try:
                environment["HOLDFAST_DATABASE_URL"] = database_url(place.database)
            except ImproperlyConfigured as error:
                self.stderr.write(f"holdfast: {error}")
                sys.exit(2)
        command = [sys.executable, "-m", "holdfast", *rest]
        sys.stdout.flush()
        os.execve(sys.executable, command, environment)

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take what `call_command` gives."""
        parser.add_argument("arguments", nargs="*")

    def handle(self, *args: Any, **options: Any) -> NoReturn:
        """Refuse `call_command`: the command line is a process of its own."""
        raise CommandError(
            "`holdfast` is a process of its own: run `manage.py holdfast …`. In tests call "
            "holdfast.django.testing.run_tasks()"
        )
