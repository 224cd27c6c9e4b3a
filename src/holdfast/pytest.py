"""A plugin for pytest: fixtures for tests of workflows, and marks that try a test again and again.

It is loaded by who asks for it, with `pytest_plugins = ["holdfast.pytest"]` in the `conftest.py` at
the root, or with `addopts = "-p holdfast.pytest"`, and costs others nothing. Async tests that use
its fixtures need no other plugin; with pytest-asyncio or anyio, these run them.

```python
@pytest.fixture
def holdfast_app() -> App:
    return shop.app


@pytest.mark.crash_everywhere
async def test_a_card_is_charged_once(environment: Environment) -> None:
    assert await environment.run(shop.checkout, "ann") == "receipt-ann"
```
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from _pytest.runner import runtestprotocol

if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.client import Client
    from holdfast.definitions.app import App
    from holdfast.testing import Environment
    from holdfast.testing.golden import Golden
    from holdfast.testing.plan import Plan, Tries

__all__ = ["client", "environment", "golden", "holdfast_app", "holdfast_database", "holdfast_now"]

_MARKS: Final = {
    "crash_everywhere": "(most=100): kill the workers of `environment` after each commit of the "
    "runs, and before it; replay, and compare the ends",
    "explore": "(seeds=20, seed=None): draw the order of what is ready in `environment` by seeds",
}
_plan: Final[pytest.StashKey[Plan]] = pytest.StashKey()
_fault: Final[pytest.StashKey[str]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks."""
    for name, usage in _MARKS.items():
        config.addinivalue_line("markers", f"{name}{usage}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that records golden logs again."""
    parser.getgroup("holdfast").addoption(
        "--update-golden",
        action="store_true",
        help="Record the logs of the fixture `golden` again, instead of replaying them.",
    )


# Fixtures


@pytest.fixture
def holdfast_app() -> App | tuple[App, ...]:
    """Return the app under test, or several, each with a worker of its own: to be overridden."""
    pytest.fail(
        "the fixture `environment` does not know which app to test: define a fixture "
        "`holdfast_app` in the test's module or in conftest.py, which returns it",
        pytrace=False,
    )


@pytest.fixture
def holdfast_database() -> str | None:
    """Return the URL of a database for the data of transactions; None: to be overridden."""
    return None


@pytest.fixture
def holdfast_now() -> datetime | None:
    """Return when virtual time begins, None for the beginning of 2026: to be overridden."""
    return None


@pytest.fixture
def environment(
    request: pytest.FixtureRequest,
    holdfast_app: App | tuple[App, ...],
    holdfast_database: str | None,
    holdfast_now: datetime | None,
) -> Environment:
    """Return an environment for the app. In an async test it runs while the test does."""
    from holdfast.definitions.app import App
    from holdfast.testing import Environment

    apps = holdfast_app if isinstance(holdfast_app, tuple) else (holdfast_app,)
    if not apps or not all(isinstance(each, App) for each in apps):  # pyright: ignore
        pytest.fail(
            "the fixture `holdfast_app` must return an App, or a tuple of several, not "
            f"{holdfast_app!r}",
            pytrace=False,
        )
    plan = request.node.stash.get(_plan, None)
    return Environment(*apps, plan=plan, database=holdfast_database, now=holdfast_now)


@pytest.fixture
def client(environment: Environment) -> Client:
    """Return the client of the environment."""
    return environment.client


@pytest.fixture
def golden(request: pytest.FixtureRequest, environment: Environment) -> Iterator[Golden]:
    """Return what compares a run with the log that was recorded of it: `await golden(handle)`.

    The log is in the folder `golden` beside the test's file.
    """
    from holdfast.testing.golden import Golden
    from holdfast.testing.plan import same_each_time

    test = re.sub(r"[^\w.-]+", "-", request.node.nodeid.partition("::")[2]).strip("-")
    with nullcontext() if _plan in request.node.stash else same_each_time():
        yield Golden(
            environment.client,
            environment.apps,
            request.path.parent / "golden",
            f"{request.path.stem}.{test}",
            update=bool(request.config.getoption("--update-golden")),
        )


# Running tests


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Let the environment run while an async test does, and compare what has come of it."""
    environment = _environment_of(item)
    if environment is None or not isinstance(item, pytest.Function):
        return (yield)
    test, plan = item.obj, item.stash.get(_plan, None)

    @functools.wraps(test)
    async def surrounded(*args: object, **kwargs: object) -> None:
        async with environment:
            await test(*args, **kwargs)
            if plan is not None:
                await environment.wait_until_idle()
                if (difference := plan.finish(environment.store)) is not None:
                    pytest.fail(difference, pytrace=False)

    item.obj = surrounded
    try:
        return (yield)
    finally:
        item.obj = test


@pytest.hookimpl
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Run an async test that uses the environment, if no other plugin has taken it."""
    test = pyfuncitem.obj
    if _environment_of(pyfuncitem) is None:
        return None
    names = inspect.signature(test).parameters
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def _environment_of(item: pytest.Item) -> Environment | None:
    """Return the environment of an async test, None for any other."""
    if not isinstance(item, pytest.Function) or not inspect.iscoroutinefunction(item.obj):
        return None
    from holdfast.testing import Environment

    found = item.funcargs.get("environment")
    return found if isinstance(found, Environment) else None


# Trying a test again and again


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    """Try a test with a mark again and again; its fixtures are made for each try."""
    names = [name for name in _MARKS if item.get_closest_marker(name) is not None]
    if not names:
        return None
    try:
        tries = _tries(item, names)
    except ValueError as error:
        item.stash[_fault] = str(error)
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _try_all(item, nextitem, tries):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a test whose mark cannot be followed."""
    if (fault := item.stash.get(_fault, None)) is not None:
        pytest.fail(fault, pytrace=False)


def _tries(item: pytest.Item, names: list[str]) -> Tries:
    """Return the tries that a mark asks for. Raises ValueError for one that cannot be followed."""
    from holdfast.testing.crashes import crashes
    from holdfast.testing.exploring import exploration

    name, *others = names
    if others:
        raise ValueError(f"{item.name} has the marks {' and '.join(names)}: make two tests of it")
    if not inspect.iscoroutinefunction(getattr(item, "obj", None)):
        raise ValueError(
            f"the mark {name} is on {item.name}, which is not async: write `async def`, and let it "
            "start runs in the fixture `environment`"
        )
    if "environment" not in getattr(item, "fixturenames", ()):
        raise ValueError(
            f"the mark {name} is on {item.name}, which does not use the fixture `environment` or "
            "`client`: only runs that are started in it are tried"
        )
    mark = item.get_closest_marker(name)
    assert mark is not None
    make = {"crash_everywhere": crashes, "explore": exploration}[name]
    try:
        return cast("Tries", make(*mark.args, **mark.kwargs))  # type: ignore[operator]
    except (TypeError, ValueError) as error:
        raise ValueError(f"the mark {name} of {item.name}: {error}") from None


def _try_all(
    item: pytest.Item, nextitem: pytest.Item | None, tries: Tries
) -> list[pytest.TestReport]:
    """Try until a try does not pass; return the reports of the last one."""
    from holdfast.testing.plan import same_each_time

    reports: list[pytest.TestReport] = []
    seconds = 0.0
    # What is made for the module and above is kept until the last try.
    parent = cast("pytest.Item", item.parent)
    for plan in tries.plans():
        item.stash[_plan] = plan
        item._report_sections.clear()  # pyright: ignore[reportPrivateUsage]  # what was captured
        with same_each_time(plan.seed):
            reports = runtestprotocol(item, log=False, nextitem=parent)
        seconds += sum(report.duration for report in reports)
        if not all(map(_has_passed, reports)):
            if reports[0].passed:  # else it is skipped, or a fixture has failed
                _add(reports, tries.name, tries.describe(plan))
            break
    else:
        _add(reports, tries.name, tries.report())
    setup_state: Any = item.session._setupstate  # pyright: ignore[reportPrivateUsage]

    def close() -> None:
        setup_state.teardown_exact(nextitem)

    make: Any = pytest.CallInfo.from_call  # its type is not known in whole
    call = make(close, when="teardown")
    if call.excinfo is not None:
        reports[-1] = item.ihook.pytest_runtest_makereport(item=item, call=call)
    reports[min(1, len(reports) - 1)].duration = seconds
    return reports


def _has_passed(report: pytest.TestReport) -> bool:
    """Return True also for a test that is expected to fail, and does not fail in this try."""
    return report.passed or str(report.longrepr).startswith("[XPASS(strict)]")


def _add(reports: list[pytest.TestReport], name: str, text: str) -> None:
    """Add a text to the report that has failed, else to that of the call."""
    failed = [each for each in reports if each.failed]
    report = failed[0] if failed else reports[min(1, len(reports) - 1)]
    if isinstance(report.longrepr, str):
        report.longrepr = f"{report.longrepr}\n{name}: {text}"
    elif report.failed and (add := getattr(report.longrepr, "addsection", None)) is not None:
        add(name, text)
    else:
        report.sections.append((name, text))
