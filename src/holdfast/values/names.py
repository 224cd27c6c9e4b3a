"""The characters that names may have.

Every name that the code or a caller gives (of an app, workflow, step, activity, queue, signal or
value) is 1 to 128 of the characters a-z, A-Z, 0-9, `.`, `_` and `-`: it can stand in a URL, a
shell command, a metric's label and a notification channel's payload without quoting. `.` and `..`
are refused: what carries a URL resolves them. The characters `@`, `#` and `/` are left out because
handlers (`app/name@version`) and keys use them.

The app is a namespace: in a database, a workflow or an activity has its full name, `app/name`.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import Final, Literal

from holdfast.errors import InvalidName

COUNTED: Final = ("workflow", "state", "queue", "tag")
"""What runs are counted by; every other name is that of an attribute."""

_name = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,128}")
_build = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._+-]{0,127}")
_slug = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,127}")  # can be a parameter, or a part of a key


def _check_slug(kind: str, name: str) -> str:
    if isinstance(name, str) and _slug.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        return name
    raise InvalidName(
        f"{name!r} is not a name for {kind}: a name is a letter or '_', then up to 127 of the "
        "characters a-z, A-Z, 0-9 and '_'"
    )


def _check(kind: str, name: str) -> str:
    # Callers without a type checker pass anything.
    if isinstance(name, str) and _name.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        return name
    if callable(name):
        raise InvalidName(
            f"{name!r} is not a name for {kind}, which is a text: call what this program has as a "
            "function, `await f(…)`, with other options `await f.with_options(…)(…)`"
        )
    raise InvalidName(
        f"{name!r} is not a name for {kind}: a name is 1 to 128 of the characters "
        "a-z, A-Z, 0-9, '.', '_' and '-', and not '.' or '..', which URLs do not keep"
    )


# Each returns the name, and raises InvalidName outside `[a-zA-Z0-9._-]{1,128}`, that of a flow
# outside `[a-zA-Z_][a-zA-Z0-9_]{0,127}`.
check_app_name: Final = partial(_check, "an app")
check_workflow_name: Final = partial(_check, "a workflow")
check_step_name: Final = partial(_check, "a step")
check_activity_name: Final = partial(_check, "an activity")
check_queue_name: Final = partial(_check, "a queue")
check_signal_name: Final = partial(_check, "a signal")
check_stream_name: Final = partial(_check, "a stream")
check_webhook_name: Final = partial(_check, "a webhook")
check_value_name: Final = partial(_check, "a value")
check_schedule_name: Final = partial(_check, "a schedule")
check_flow_name: Final = partial(_check_slug, "a flow")


def full_name(app: str, name: str) -> str:
    """Return the name that a workflow or an activity of an app has in the database."""
    return f"{app}/{name}"


@lru_cache(maxsize=1024)
def split_name(full: str) -> tuple[str, str]:
    """Return the app and the name of `app/name`; of a name alone, the app is empty."""
    app, _, name = full.rpartition("/")
    return app, name


def turn_handler(name: str, version: int, build: str | None) -> str:
    """Return what a worker must have to take a run's turn: `app/name@version` or `…+build`."""
    handler = f"{name}@{version}"
    return handler if build is None else f"{handler}+{build}"


def split_handler(handler: str) -> tuple[str, int, str | None]:
    """Return the full name, the version (0 of an activity) and the build of a handler.

    >>> split_handler("shop/checkout@1"), split_handler("shop/checkout@2+a81f")
    (('shop/checkout', 1, None), ('shop/checkout', 2, 'a81f'))
    """
    name, _, rest = handler.rpartition("@")
    version, _, build = rest.partition("+")
    return name, int(version), build or None


def check_build(build: str) -> str:
    """Return the name of a build. Raises InvalidName for a bad one.

    It is 1 to 128 of `a-zA-Z0-9._+-`, and begins with a letter or a digit.
    """
    if isinstance(build, str) and _build.fullmatch(build):  # pyright: ignore[reportUnnecessaryIsInstance]
        return build
    raise InvalidName(
        f"{build!r} is not a name for a build: it is 1 to 128 of the characters a-z, A-Z, 0-9, "
        "'.', '_', '+' and '-', and begins with a letter or a digit, as a commit's hash or 1.4.2"
    )


def is_same_name(recorded: str, name: str) -> bool:
    """Return True if a log's name is this one: early logs have names without apps.

    >>> is_same_name("checkout", "shop/checkout"), is_same_name("bar/checkout", "shop/checkout")
    (True, False)
    """
    return recorded == name or ("/" not in recorded and recorded == split_name(name)[1])


def check_reference(kind: str, name: str) -> str:
    """Return a name as a caller may write it: `name`, or `app/name`. Raises InvalidName.

    >>> check_reference("a workflow", "shop/checkout")
    'shop/checkout'
    """
    if isinstance(name, str) and "/" in name:  # pyright: ignore[reportUnnecessaryIsInstance]
        app, own = split_name(name)
        check_app_name(app)
        _check(kind, own)
    else:
        _check(kind, name)
    return name


def check_attribute_name(name: str) -> str:
    """Return the name of an attribute of runs.

    Raises InvalidName outside `[a-zA-Z0-9._-]{1,128}`, and for what runs are counted by already.
    """
    if name in COUNTED:
        raise InvalidName(
            f"{name!r} is not a name for an attribute: runs are counted by it already"
        )
    return _check("an attribute", name)


def check_flow_step_name(name: str) -> str:
    """Return the name of a flow's step.

    Raises InvalidName outside `[a-zA-Z_][a-zA-Z0-9_]{0,127}`, and for `run`, which stands for the
    input of the run.
    """
    if name == "run":
        raise InvalidName(
            "'run' is not a name for a step of a flow: it is reserved, because a parameter of "
            "this name takes the run's input"
        )
    return _check_slug("a step of a flow", name)


def changed_kind(kind: Literal["workflow", "flow"], handler: str) -> str:
    """Return why a run of one kind does not continue if its name has become one of the other."""
    other = "flow" if kind == "workflow" else "workflow"
    return (
        f"it began as a run of {kind} {handler}, which is a {other} in this code: put the {kind} "
        f"back, and give the {other} another name or version"
    )
