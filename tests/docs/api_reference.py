"""The reference of the Python API, made from signatures and docstrings: a page a module.

What has more to it than fits on its module's page has one of its own: the classes that every
program uses, and the groups of a client. `python -m tests.docs.api_reference` writes all again.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast import client, core, definitions, logs, payloads, testing, types
from holdfast.client import Client
from holdfast.definitions import activities, middleware, steps
from holdfast.insight import actions, approvals, spans, why

FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "api"
_WIDTH = 92
_session = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)  # an example with its answers
_class = re.compile(r"<class '(\w+)'>")
_function = re.compile(r"<function .*? at 0x[0-9a-f]+>")  # the default of a parameter

_HEAD = """\
# The Python API

These pages are made from the signatures and docstrings of the public classes; a test compares
them. Errors have [a page of their own](../errors.md), and so have [options](../options.md) and
the [types](../types.md) that values may have.

`SyncClient` has the methods and groups of `Client`, without `await`, `SyncRunHandle` the methods
of `RunHandle`, and `SyncMessage` those of `Message`.

| page | what is there |
|---|---|
"""

# Of `holdfast`, with a page of its own.
_LARGE = ("App", "Client", "Context", "Flow", "RunHandle")

# What `@app.workflow` and the like make, what runs inside them, and what surrounds them.
_DEFINITIONS = (
    definitions.Workflow,
    definitions.Step,
    definitions.Activity,
    definitions.Consumer,
    definitions.FlowStep,
    definitions.Schedule,
    steps.StepContext,
    activities.ActivityContext,
    middleware.Middleware,
)
_CLIENT = (
    client.Message,
    client.Run,
    client.RunPage,
    client.RunWait,
    client.ScheduleInfo,
    client.Signal,
    client.Tick,
)
# What a value of `holdfast.types` is, where callers get one in hand.
_VALUES = (
    types.RunRecord,
    types.Wait,
    types.LoggedEvent,
    types.Event,
    types.ErrorInfo,
    types.When,
    types.RunTarget,
    types.TickPolicy,
)

_FOUND = (  # what a client's `why`, `timeline` and `approvals` return
    why.Explanation,
    actions.Action,
    spans.Timeline,
    spans.Span,
    spans.Attempt,
    approvals.OpenApproval,
)

_PAYLOADS = (payloads.AesGcm, payloads.Zlib, payloads.PayloadCodec)

# By callers; the rest they are given.
_CONSTRUCTED = {"App", "Client", "Environment", "Retry", "AesGcm", "Zlib", "Replay"}
# What only the engine calls, and of which classes.
_INTERNAL = {"call_plain", "encode_arguments", "decode_arguments", "encode_result", "decode_result"}
_INTERNAL |= {"encode_input", "decode_input", "encode_output", "decode_output"}
_INTERNAL |= {"cancel", "mark_sent", "unsent"}
_INTERNAL |= {"input_annotation", "output_annotation"}
_INTERNAL |= {"decode", "failures"}
_INTERNAL |= {"annotation", "described", "arguments_before_fields", "may_be_skipped"}
_ENGINE_CALLS = {"Activity", "Step", "Workflow", "ActivityContext", "StepContext"}
_ENGINE_CALLS |= {"Consumer", "MessageContext", "Flow", "FlowStep", "FlowStepContext", "RunStep"}


def render() -> dict[str, str]:
    """Return the text of each page by its file's name."""
    pages = {"index.md": _HEAD}
    for module, things in _modules():
        small = [(name, thing) for name, thing in things if name not in _LARGE]
        file = f"{module}.md"
        intro = (sys.modules[module].__doc__ or "").partition("\n\n")[0]
        pages[file] = "".join([f"# `{module}`\n\n{intro}\n", *_listed(small)])
        names = ", ".join(f"[`{name}`]({file}#{name.lower()})" for name, _ in small)
        pages["index.md"] += f"| [`{module}`]({file}) | {names} |\n"
        for name, thing in things:
            if name in _LARGE:
                _add_large(pages, name, thing)
    for name, value in vars(Client()).items():
        if not name.startswith("_"):
            _add_large(pages, f"client.{name}", type(value))
    return pages


def _add_large(pages: dict[str, str], name: str, thing: type) -> None:
    file = f"{_kebab(name)}.md"
    pages[file] = "".join(_described(name, thing, "#")).lstrip()
    doc = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    pages["index.md"] += f"| [`{name}`]({file}) | {doc} |\n"


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def _listed(things: Iterable[tuple[str, object]]) -> Iterator[str]:
    for name, thing in things:
        yield from _described(name, thing, "##")


def _modules() -> Iterator[tuple[str, list[tuple[str, object]]]]:
    exported = {name: getattr(holdfast, name) for name in holdfast.__all__}
    ours = {
        name: thing
        for name, thing in exported.items()
        if callable(thing) and not _is_error(thing) and name != "SyncClient"
    }
    yield "holdfast", sorted(ours.items(), key=lambda item: (item[0][0].islower(), item[0]))
    yield "holdfast.definitions", [(each.__name__, each) for each in _DEFINITIONS]
    yield "holdfast.testing", [("Environment", testing.Environment)]
    yield "holdfast.logs", [(name, getattr(logs, name)) for name in logs.__all__]
    yield "holdfast.client", [(each.__name__, each) for each in _CLIENT]
    yield "holdfast.insight", [(each.__name__, each) for each in _FOUND]
    yield "holdfast.payloads", [(each.__name__, each) for each in _PAYLOADS]
    yield "holdfast.core", list(_core())
    yield "holdfast.types", [(each.__name__, each) for each in _VALUES]


def _core() -> Iterator[tuple[str, object]]:
    """Give what is of the core alone: its events stand among the types."""
    for name in core.__all__:
        thing = getattr(core, name)
        if thing.__module__ == core.__name__:
            yield name, thing


def _is_error(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, BaseException)


def _described(name: str, thing: Any, heading: str) -> Iterator[str]:
    yield f"\n{heading} {name}\n\n"
    if not inspect.isclass(thing):
        yield _signature(name, thing)
        yield _text(thing)
        return
    if name in _CONSTRUCTED:
        yield _signature(name, thing)
    yield _text(thing)
    if issubclass(thing, msgspec.Struct):
        fields = ", ".join(f"`{field}`" for field in thing.__struct_fields__)
        yield f"\nFields: {fields}.\n"
    elif name in _CONSTRUCTED and (said := inspect.getdoc(thing.__init__)):
        yield f"\n{_plain(said)}\n"
    for member, value in _members(thing):
        yield f"\n{heading}# {name}.{member}\n\n"
        if isinstance(value, property):
            yield _text(value.fget)
        elif isinstance(value, cached_property):
            yield _text(value.func)
        else:
            yield _signature(member, value)
            yield _text(value)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Give the public methods and properties that holdfast documents, inherited ones too."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("holdfast"):
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or name in seen or _is_internal(kind, name):
                continue
            seen.add(name)
            if isinstance(value, staticmethod | classmethod):
                value = value.__func__
            shown = inspect.isfunction(value) or isinstance(value, property | cached_property)
            if shown and inspect.getdoc(value):
                yield name, value


def _is_internal(kind: type, name: str) -> bool:
    return name in _INTERNAL and kind.__name__ in _ENGINE_CALLS


def _signature(name: str, thing: Callable[..., Any]) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    given = [
        each.replace(annotation=_shown(each.annotation))
        for at, each in enumerate(signature.parameters.values())
        if at > 0 or each.name not in ("self", "cls")
    ]
    returns = _shown(signature.return_annotation)
    signature = signature.replace(parameters=given, return_annotation=returns)
    prefix = "async " if inspect.iscoroutinefunction(thing) else ""
    text = f"{prefix}{name}{signature}"
    if len(text) > _WIDTH:
        parameters = [str(each) for each in given]
        returned = text.rpartition(" -> ")[2] if " -> " in text else ""
        stars = _with_stars(given, parameters)
        body = "".join(f"    {each},\n" for each in stars)
        text = f"{prefix}{name}(\n{body})" + (f" -> {returned}" if returned else "")
    text = _class.sub(r"\1", _function.sub("…", text))
    return f"```py\n{text}\n```\n\n"


class _Shown(str):
    """The text of an annotation, without the quotes that a default of text has."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _shown(annotation: object) -> object:
    return _Shown(annotation) if isinstance(annotation, str) else annotation


def _with_stars(given: list[inspect.Parameter], texts: list[str]) -> Iterator[str]:
    """Give the parameters as texts, with the `*` after which they go by name."""
    starred = False
    for parameter, text in zip(given, texts, strict=True):
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield text


def _text(thing: object) -> str:
    return f"{_plain(inspect.getdoc(thing) or '')}\n"


def _plain(doc: str) -> str:
    """Return a docstring as text of the page, whose examples run where they are written."""
    doc = _session.sub(r"```pycon\n\g<0>\n```", doc)
    return doc.replace("```python", "```py")


def write(folder: Path, pages: dict[str, str]) -> None:
    """Write pages into their folder, in which nothing else stays."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


def read(folder: Path) -> dict[str, str]:
    """Return the pages of a folder by their names."""
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


if __name__ == "__main__":
    write(FOLDER, render())
