"""A site of Django, in processes of its own: settings belong to a whole process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.forks import forked_programs
from tests.clusters import Homes

SITE = Path(__file__).parent
_SECONDS = 120
IMPORTED = (
    *("django.core.management", "django.db.models", "django.test.client", "django.urls"),
    *("django.core.handlers.wsgi", "django.db.migrations.executor", "django.template.defaulttags"),
    *("django.contrib.auth.hashers", "django.db.backends.postgresql.base", "django.forms"),
    "django.core.management.commands.migrate",
)


@pytest.fixture(scope="module", autouse=True)
def programs() -> Iterator[None]:
    """What manages the site are forks of a process that has imported Django."""
    with forked_programs(*IMPORTED):
        yield


@pytest.fixture
def environment(database_url: str) -> dict[str, str]:
    return {**os.environ, "HOLDFAST_DATABASE_URL": database_url, "PYTHONDONTWRITEBYTECODE": "1"}


def manage(*arguments: str, environment: dict[str, str], code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=SITE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_tests_of_the_site_pass(environment: dict[str, str]) -> None:
    """They create a database beside the one of the settings, where `migrate` runs."""
    said = manage("test", "--noinput", environment=environment)
    assert "OK" in said


@contextmanager
def worker(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "manage.py", "holdfast", "worker", "--grace", "1s"],
        cwd=SITE,
        env=environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until_there(folder: Path, count: int) -> None:
    deadline = time.monotonic() + _SECONDS
    while len(list(folder.iterdir())) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_task_survives_the_kill_of_its_worker(
    environment: dict[str, str], tmp_path: Path
) -> None:
    manage("migrate", environment=environment)
    code = f"from mail.tasks import *; print(wait_for_file.enqueue({str(tmp_path)!r}).id)"
    with worker(environment) as first, worker(environment) as second:
        task = manage("shell", "-v", "0", "-c", code, environment=environment).strip()
        until_there(tmp_path, 1)
        pid = int(next(tmp_path.iterdir()).name)
        killed, other = (first, second) if first.pid == pid else (second, first)
        assert killed.pid == pid
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        until_there(tmp_path, 2)
        assert {path.name for path in tmp_path.iterdir()} == {str(pid), str(other.pid)}
        (tmp_path / "go").touch()
        manage("holdfast", "runs", "wait", task, environment=environment)
    code = f"from mail.tasks import *; r = wait_for_file.get_result({task!r}); print(r.status)"
    assert manage("shell", "-v", "0", "-c", code, environment=environment).strip() == "SUCCESSFUL"


def test_an_embedded_database_stays_while_a_worker_uses_it(tmp_path: Path, homes: Homes) -> None:
    """Each process of the site holds it; others begin and end meanwhile."""
    home = homes.make(tmp_path / "home", migrated=False)
    environment = {**os.environ, "HOLDFAST_HOME": str(home)}
    for name in ("HOLDFAST_DATABASE_URL", "DATABASE_URL"):
        environment.pop(name, None)
    manage("migrate", environment=environment)
    with worker(environment):
        code = "from mail.tasks import *; print(send.enqueue('a').id)"
        task = manage("shell", "-v", "0", "-c", code, environment=environment).strip()
        manage("holdfast", "runs", "wait", task, environment=environment)
        manage("migrate", environment=environment)
        task = manage("shell", "-v", "0", "-c", code, environment=environment).strip()
        manage("holdfast", "runs", "wait", task, environment=environment)


def test_a_database_without_the_schema_is_named_with_the_way_out(
    environment: dict[str, str],
) -> None:
    environment["HOLDFAST_DATABASE_URL"] += (
        "&" if "?" in environment["HOLDFAST_DATABASE_URL"] else "?"
    )
    environment["HOLDFAST_DATABASE_URL"] += "dbname=postgres"
    code = "from mail.tasks import *; send.enqueue('a')"
    said = manage("shell", "-v", "0", "-c", code, environment=environment, code=1)
    assert "run `manage.py migrate`" in said


def test_options_reach_the_command_line(environment: dict[str, str]) -> None:
    assert "holdfast" in manage("holdfast", "--version", environment=environment)
    said = manage(
        "holdfast", "--settings", "settings", "runs", "list", "--json", environment=environment
    )
    assert '"runs":[]' in said
    said = manage("holdfast", "runs", "show", "none", environment=environment, code=2)
    assert "none" in said


def test_a_task_is_logged_once_in_a_line_with_its_run(
    environment: dict[str, str], tmp_path: Path
) -> None:
    manage("migrate", environment=environment)
    code = "from mail.tasks import *; print(send.enqueue('a').id)"
    task = manage("shell", "-v", "0", "-c", code, environment=environment).strip()
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "holdfast", "worker"],
            cwd=SITE,
            env=environment | {"DEBUG": "1"},  # Django's own handler writes nothing without it
            stderr=file,
        )
        try:
            manage("holdfast", "runs", "wait", task, environment=environment)
        finally:
            process.terminate()
            process.wait()
    [line] = [each for each in log.read_text().splitlines() if "state=SUCCESSFUL" in each]
    assert f"run {task}, step django-task" in line


def test_commands_in_hints_are_those_of_manage(environment: dict[str, str]) -> None:
    manage("migrate", environment=environment)
    manage("holdfast", "queues", "pause", "mail", environment=environment)
    start = ("start", "site/checkout", "--queue", "mail")
    said = manage("holdfast", *start, environment=environment)
    assert "`python manage.py holdfast queues resume mail`" in said


def test_a_site_on_sqlite_is_told_so_by_the_checks_and_the_worker(tmp_path: Path) -> None:
    """Also if no module of the site has imported Django's tasks."""
    (tmp_path / "settings.py").write_text(
        "from importlib.util import find_spec\n"
        "INSTALLED_APPS = ['holdfast.django']\n"
        "if find_spec('django_tasks'):\n"
        "    INSTALLED_APPS.append('django_tasks')\n"
        "SECRET_KEY = 'only for tests'\n"
        "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}}\n"
        "TASKS = {'default': {'BACKEND': 'holdfast.django.backend.TaskBackend'}}\n"
    )
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(tmp_path)}
    for command, code in ((["check"], 1), (["migrate"], 1), (["holdfast", "worker"], 2)):
        done = subprocess.run(
            [sys.executable, "-m", "django", *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        assert done.returncode == code, done.stderr
        assert "holdfast.django.settings.database()" in done.stderr
        assert "Traceback" not in done.stderr
