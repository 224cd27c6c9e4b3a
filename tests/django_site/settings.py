"""The settings of a site whose tasks are holdfast's. Its own tests are in mail/tests.py."""

import os
from importlib.util import find_spec

from holdfast.django.settings import database

DEBUG = "DEBUG" in os.environ
SECRET_KEY = "only for tests"
INSTALLED_APPS = ["holdfast.django", "mail"]
if find_spec("django_tasks"):  # before Django 6.0
    INSTALLED_APPS.append("django_tasks")
# Of the backend that is wrong.
SILENCED_SYSTEM_CHECKS = ["holdfast.E1", "holdfast.E3", "holdfast.W1"]
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": database(),
    "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
BACKEND = "holdfast.django.backend.TaskBackend"
TASKS = {
    "default": {
        "BACKEND": BACKEND,
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"app": "mail.workflows.app", "attempts": 2},
    },
    "wrong": {"BACKEND": BACKEND, "OPTIONS": {"database": "lite", "retries": 3}},
}
