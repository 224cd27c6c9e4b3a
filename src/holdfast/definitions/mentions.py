"""Find the names in the code of a workflow: those of what it may call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, cast

from holdfast.definitions.recorded import Recorded
from holdfast.definitions.workflows import Workflow
from holdfast.names import split_name

_MAX_FUNCTIONS: Final = 5_000
_MAX_ELEMENTS: Final = 1_000  # of one container


@functools.lru_cache(maxsize=256)
def mentions(function: Callable[..., object]) -> frozenset[str]:
    """Return all names in the code of a function and of the functions that it calls.

    These are identifiers, texts, and the names (without apps) of steps, activities and workflows in
    variables of their modules. The code of steps and activities is not searched.
    """
    search = _Search()
    search.visit(function)
    return frozenset(search.found)


class _Search:
    def __init__(self) -> None:
        self.found: set[str] = set()
        self._seen: set[int] = set()
        self._functions = 0

    def visit(self, value: Any) -> None:
        """Search a value that a name stands for."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        kind = cast("type[object]", type(value))
        if isinstance(value, str):
            self.found.add(split_name(value)[1])
        elif issubclass(kind, Recorded | Workflow):
            self.found.update((value.name, *getattr(value, "aliases", ())))
        elif isinstance(value, FunctionType):
            self._visit_function(value)
        elif not isinstance(value, ModuleType):
            self._visit_all(_parts(value))

    def _visit_all(self, values: Iterable[Any]) -> None:
        for value in list(values)[:_MAX_ELEMENTS]:
            self.visit(value)

    def _visit_function(self, function: FunctionType) -> None:
        self._functions += 1
        ours = (function.__module__ or "").partition(".")[0] == "holdfast"
        if ours or self._functions > _MAX_FUNCTIONS:
            return
        self._visit_code(function.__code__, function.__globals__)
        self._visit_all(cell.cell_contents for cell in function.__closure__ or () if _is_set(cell))
        self._visit_all((function.__defaults__, function.__kwdefaults__))

    def _visit_code(self, code: CodeType, names: Mapping[str, Any]) -> None:
        self.found.update(code.co_names)
        for name in code.co_names:
            value = names.get(name)
            self.visit(value)
            if isinstance(value, ModuleType):
                self._visit_all(vars(value)[each] for each in code.co_names if each in vars(value))
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._visit_code(constant, names)
            else:
                self.visit(constant)


def _parts(value: Any) -> Any:
    """Return the parts of a value that may be called."""
    kind = cast("type[object]", type(value))
    if issubclass(kind, MethodType | staticmethod | classmethod):
        return (value.__func__,)
    if issubclass(kind, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if issubclass(kind, dict):
        return value.values()
    if issubclass(kind, list | tuple | set | frozenset):
        return value
    held: Any = getattr(value, "__dict__", None)
    if held is None:
        return ()
    return held.values() if issubclass(kind, type) else (kind, *held.values())


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
