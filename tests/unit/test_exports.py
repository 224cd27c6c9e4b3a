"""The public names of the package."""

import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest

import holdfast
from holdfast import types


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(holdfast, name) is not None


def test_a_name_that_is_not_public_is_missing() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        getattr(holdfast, "Nothing")  # noqa: B009


def test_a_shell_completes_the_public_names() -> None:
    assert dir(holdfast) == sorted(holdfast.__all__)


def test_the_package_alone_imports_nothing_heavy() -> None:
    code = "import sys, holdfast; print(*{'asyncio', 'msgspec', 'asyncpg'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


SELDOM = {
    "fractions",
    "gzip",
    "holdfast.insight.timeline",
    "holdfast.insight.why",
    "holdfast.payloads.store.store",
    "holdfast.retention",
    "holdfast.runtime",
    "holdfast.schedules",
    "holdfast.store.memory",
    "holdfast.store.shards",
    "holdfast.worker",
    "zoneinfo",
}


@pytest.mark.parametrize("client", ["client", "sync"])
def test_a_client_of_a_database_imports_nothing_that_few_programs_need(client: str) -> None:
    code = f"import sys, holdfast.{client}, holdfast.store.postgres\n"
    code += f"print(*{SELDOM} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_worker_of_one_database_does_not_import_the_store_over_several() -> None:
    code = "import sys, holdfast.worker; print(*{'holdfast.store.shards'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_no_module_hides_a_public_name() -> None:
    """Python sets a module on its package when it is imported, before or after the name."""
    assert [name for name in holdfast.__all__ if find_spec(f"holdfast.{name}")] == []


def test_a_star_import_of_the_types_binds_them_and_no_module() -> None:
    bound: dict[str, object] = {}
    exec("from holdfast.types import *", bound)
    assert {"Event", "DEFAULT_QUEUE", "State", "count_bearable"} <= bound.keys()
    assert not {name for name, value in bound.items() if isinstance(value, ModuleType)}
    assert {name for name in vars(types) if name[0].isupper()} <= bound.keys()
