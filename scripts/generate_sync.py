"""Write the synchronous client from the asynchronous one.

Each public method becomes a method of the same name, parameters and types, which makes the call
through a portal: `blocking`, `iterating` and `making` make it of the asynchronous one. A method is
written out only if it has overloads, or if the type of its result is a variable. Of the
documentation the first line is repeated: `holdfast.sync.docs` takes the rest from those methods.

    python scripts/generate_sync.py           write src/holdfast/sync/
    python scripts/generate_sync.py --check   fail if a module there differs
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "holdfast"


CLIENT = PACKAGE / "client"
_LARGE = {"queues", "runs", "schedules", "topics"}


@dataclass(frozen=True)
class Source:
    """An asynchronous class, and the base of its synchronous twin."""

    module: str
    name: str
    base: str

    @property
    def twin(self) -> str:
        """The module of its twin: groups of a few methods share one."""
        is_small = self.base.startswith("SyncGroup") and self.module not in _LARGE
        return "groups" if is_small else self.module


def _groups() -> dict[str, Source]:
    """Return the groups that `Client.__init__` makes, by the name of their attribute."""
    client = _class(_parse("client"), "Client")
    modules = {
        alias.name: (node.module or "").rpartition(".")[2]
        for node in _parse("client").body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    constructor = next(node for node in _functions(client) if node.name == "__init__")
    groups: dict[str, Source] = {}
    for node in constructor.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            kind = ast.unparse(node.annotation)
            groups[node.target.attr] = Source(modules[kind], kind, f"SyncGroup[{kind}]")
    return groups


def _parse(module: str) -> ast.Module:
    return ast.parse((CLIENT / f"{module}.py").read_text())


def _class(tree: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def _functions(found: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in found.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


GROUPS = _groups()
SOURCES = (
    Source("client", "Client", "SyncBase"),
    Source("handle", "RunHandle", "SyncHandleBase[Out_co]"),
    Source("message", "Message", "SyncMessageBase"),
    *GROUPS.values(),
)

_ANY = next(
    node.args
    for node in ast.walk(ast.parse("def any(self, *args: Any, **options: Any): ..."))
    if isinstance(node, ast.FunctionDef)
)
_HELD = re.compile(r"(\[?)\b(RunHandle|Message)\b")  # in the type of a result
WIDTH = 86  # of a docstring in a method, in characters

# What the hand-written bases hold.
SKIPPED = {"open", "close", "run_id", "entity"}

TWINS = {source.name: f"Sync{source.name}" for source in SOURCES}
_YIELDS = ("AsyncGenerator", "AsyncIterator")
TYPES = {"AsyncGenerator": "Generator", "AsyncIterator": "Iterator", **TWINS}


def generate(module: str) -> str:
    """Return the text of a synchronous module, formatted."""
    sources = [each for each in SOURCES if each.twin == module]
    nodes = [(each, node) for each in sources for node in _parse(each.module).body]
    imports = [
        ast.unparse(node) for _, node in nodes if isinstance(node, ast.ImportFrom | ast.Import)
    ]
    text = "\n".join(
        (
            '"""Generated from the asynchronous client by scripts/generate_sync.py."""',
            *imports,
            "from collections.abc import Generator, Iterator",
            "from typing import Any, cast",
            *(
                f"from holdfast.client.{each.module} import {node.name}"
                for each, node in nodes
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
            ),
            "from holdfast.sync.base import SyncBase, SyncGroup, SyncHandleBase",
            "from holdfast.sync.base import SyncMessageBase, Target",
            "from holdfast.sync.base import blocking, each, iterating, making",
            *(
                f"from holdfast.sync.{each.twin} import Sync{each.name}"
                for each in SOURCES
                if each.twin != module
            ),
            *_imports_for_types(node for _, node in nodes),
            *dict.fromkeys(ast.unparse(node) for _, node in nodes if _is_typevar(node)),
            *(line for each in sources for line in _twin(each)),
        )
    )
    return _formatted(text)


def _twin(source: Source) -> list[str]:
    """Return the lines of a synchronous class."""
    found = _class(_parse(source.module), source.name)
    return [
        f"class Sync{source.name}({source.base}, of={source.name}):",
        *_indented(_docstring(found) or ""),
        *(_indented(_constructor(found)) if source.name == "Client" else ()),
        *(line for text in _translations(found, source) for line in _indented(text)),
    ]


def _constructor(client: ast.ClassDef) -> str:
    """Return the constructor of the synchronous client, with its groups."""
    method = next(node for node in _functions(client) if node.name == "__init__")
    return "\n".join(
        (
            f"def __init__({ast.unparse(method.args)}) -> None:",
            *_indented(_docstring(method) or ""),
            f"    super().__init__(Target({', '.join(_passed(method.args))}))",
            *(
                f"    self.{name}: Sync{group.name} = "
                f"Sync{group.name}(self._portal, self._target.{name})"
                for name, group in GROUPS.items()
            ),
        )
    )


def _methods(found: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node
        for node in _functions(found)
        if not node.name.startswith("_") and node.name not in SKIPPED
    ]


def _translations(found: ast.ClassDef, source: Source) -> list[str]:
    methods = _methods(found)
    several = {method.name for method in methods if _is_overload(method)}
    is_generic = source.base.endswith("[Out_co]")
    of = f"{source.name}[object]" if is_generic else source.name
    return [
        _translate(method, precise=method.name not in several)
        if method.name in several or _is_written_out(method)
        else _made(method, of)
        for method in methods
    ]


def _is_written_out(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True if the type of the result is a variable."""
    result = ast.unparse(method.returns) if method.returns else "None"
    return re.search(r"\b([A-Z]|Out|Out_co)\b", result) is not None


def _made(method: ast.FunctionDef | ast.AsyncFunctionDef, of: str) -> str:
    """Return the line that makes a synchronous method of an asynchronous one."""
    result = ast.unparse(method.returns) if method.returns else ""
    make, given = "iterating" if result.startswith(_YIELDS) else "blocking", f"{of}.{method.name}"
    if (held := _HELD.search(result)) is not None:
        twin = f"Sync{held[2]}" + ("[object]" if held[2] == "RunHandle" else "")
        make, given = "making", f"{f'each({twin})' if held[1] else twin}, {given}"
    return f"{method.name} = {make}({given})\n{_docstring(method, WIDTH + 4) or ''}"


def _is_overload(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(each) == "overload" for each in method.decorator_list)


def _translate(method: ast.FunctionDef | ast.AsyncFunctionDef, *, precise: bool) -> str:
    """Return a method's synchronous form: the same signature, a call, the result.

    If it is `precise`, its one signature says of which type the call's result is. Otherwise its
    overloads do, and what they have in common passes on what it is given.
    """
    result = ast.unparse(method.returns) if method.returns else "None"
    arguments = _Renamed().visit(method.args)
    if not precise and not _is_overload(method) and method.args.vararg is None:
        arguments = method.args = _ANY
    lines = [f"@{ast.unparse(each)}" for each in method.decorator_list]
    lines.append(f"def {method.name}({ast.unparse(arguments)}) -> {_renamed(result)}:")
    if _is_overload(method):
        return "\n".join([*lines, "    ..."])
    lines += _indented(_docstring(method) or "")
    lines.append(f"    return {_body(method, result, precise=precise)}")
    return "\n".join(lines)


def _body(method: ast.FunctionDef | ast.AsyncFunctionDef, result: str, *, precise: bool) -> str:
    """Write the expression that makes the call and turns its result into a synchronous one."""
    target = f"self._target.{method.name}"
    given = ", ".join(_passed(method.args))
    if result.startswith(_YIELDS):
        found = f"{target}({given})" if precise else f"cast('{result}', {target}({given}))"
        return f"self._portal.iterate({found})"
    if isinstance(method, ast.FunctionDef):
        return f"SyncRunHandle(self._portal, {target}({given}))"
    call = f"self._call({', '.join((target, given) if given else (target,))})"
    held = _HELD.search(result)
    if held is None:  # a type variable alone is lost on the way through `_call`
        return f"cast('{result}', {call})" if re.fullmatch("[A-Z]", result) and precise else call
    if not precise:
        call = f"cast('{result}', {call})"
    if held[1]:
        return f"[Sync{held[2]}(self._portal, each) for each in {call}]"
    return f"Sync{held[2]}(self._portal, {call})"


def _passed(arguments: ast.arguments) -> list[str]:
    passed = [each.arg for each in arguments.args if each.arg != "self"]
    passed += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    passed += [f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]
    if arguments.kwarg:
        passed.append(f"**{arguments.kwarg.arg}")
    return passed


class _Renamed(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(TYPES.get(node.id, node.id))


def _renamed(annotation: str) -> str:
    return ast.unparse(_Renamed().visit(ast.parse(annotation)))


def _docstring(
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, width: int = WIDTH
) -> str | None:
    """Return the first line of a docstring, as a docstring."""
    text = ast.get_docstring(node)
    if text is None:
        return None
    first = textwrap.fill(text.splitlines()[0], width)
    return f'"""{first}\n"""' if "\n" in first else f'"""{first}"""'


def _imports_for_types(nodes: Iterable[ast.stmt]) -> list[str]:
    """Return the block of imports that only type checkers see, if the sources have any."""
    blocks = (node for node in nodes if isinstance(node, ast.If))
    seen = (node.body for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING")
    lines = [f"    {ast.unparse(part)}" for body in seen for part in body]
    return ["if TYPE_CHECKING:", *lines, ""] if lines else []


def _is_typevar(node: ast.stmt) -> bool:
    made = ast.unparse(node.value) if isinstance(node, ast.Assign) else ""
    return made.startswith(("TypeVar(", "TypeVarTuple("))


def _indented(text: str) -> list[str]:
    return [f"    {line}" if line else "" for line in text.split("\n")]


def _formatted(text: str) -> str:
    name = ["--stdin-filename", str(PACKAGE / "sync" / "generated.py"), "-"]
    for command in (["check", "--quiet", "--fix-only", "--select", "F401,I,TC,UP"], ["format"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *name],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


def main(arguments: list[str]) -> int:
    """Write the modules, or with --check compare them."""
    stale = 0
    for module in dict.fromkeys(source.twin for source in SOURCES):
        path = PACKAGE / "sync" / f"{module}.py"
        text = generate(module)
        if "--check" not in arguments:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path} is not what scripts/generate_sync.py makes of the client")
            stale += 1
    return min(stale, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
