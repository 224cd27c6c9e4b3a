"""holdfast among Django's installed apps: `manage.py migrate` brings its schema up to date, too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.db.models.signals import post_migrate


class HoldfastConfig(AppConfig):
    """The app `holdfast.django`."""

    name = "holdfast.django"
    label = "holdfast"
    verbose_name = "holdfast"

    def ready(self) -> None:
        """Let `manage.py migrate` migrate the schema of holdfast, also in the database of tests."""
        post_migrate.connect(_migrate, sender=self)
        with contextlib.suppress(ModuleNotFoundError):  # before Django 6.0
            import_module("django.tasks.checks")  # of the backends in TASKS: Django may not do it


@dataclass(frozen=True)
class Place:
    """Where the tasks of a backend are, and the path of the app that runs them."""

    database: str = "default"
    schema: str = "holdfast"
    app: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Place:
        """Return the place that the options of a backend name."""
        return cls(**{name: options[name] for name in cls.__annotations__ if name in options})


def places() -> list[Place]:
    """Return where the backends in `TASKS` keep tasks; where one without options would, if none."""
    found = dict.fromkeys(Place.of(each.get("OPTIONS", {})) for each in own_backends())
    return list(found) or [Place()]


def own_backends() -> list[dict[str, Any]]:
    """Return the backends in `TASKS` that are holdfast's, as the settings have them."""
    given: dict[str, dict[str, Any]] = getattr(settings, "TASKS", {})
    return [each for each in given.values() if each["BACKEND"].startswith("holdfast.django.")]


def _migrate(using: str, **_: Any) -> None:
    from holdfast.database.migrate import prepare_schema
    from holdfast.django.connection import database_url

    with ThreadPoolExecutor(1) as pool:  # the caller's thread may have an event loop that runs
        for schema in {each.schema for each in places() if each.database == using}:
            pool.submit(asyncio.run, prepare_schema(database_url(using), schema)).result()
