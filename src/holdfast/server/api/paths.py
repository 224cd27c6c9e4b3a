"""Find the operations of a path, part by part."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Scope

from holdfast.server.operations import Operation


class Paths:
    """The operations by path and method. A part in braces stands for any text without a slash."""

    def __init__(self, operations: Iterable[Operation] = ()) -> None:
        self._fixed: dict[str, Paths] = {}
        self._named: tuple[str, Paths] | None = None
        self.methods: dict[str, Operation] = {}
        for operation in operations:
            for path in operation.paths:
                self._add(path, operation)

    def find(self, path: str) -> tuple[dict[str, Operation], dict[str, str]] | None:
        """Return the operations of a path by method, and what stands in its named parts."""
        node, named = self, dict[str, str]()
        for part in path.split("/")[1:]:
            inner = node._fixed.get(part)
            if inner is None:
                if node._named is None or not part:
                    return None
                name, inner = node._named
                named[name] = part
            node = inner
        return (node.methods, named) if node.methods else None

    def _add(self, path: str, operation: Operation) -> None:
        node = self
        for part in path.split("/")[1:]:
            if part.startswith("{"):
                name = part.strip("{}")
                if node._named is None:
                    node._named = name, Paths()
                assert node._named[0] == name, f"{path}: another path says {node._named[0]}"
                node = node._named[1]
            else:
                node = node._fixed.setdefault(part, Paths())
        assert operation.method not in node.methods, f"{operation.method} {path} is there twice"
        node.methods[operation.method] = operation


def route_path(scope: Scope) -> str:
    """Return the path of a request, without the prefix below which the server is mounted."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "")
    within = bool(prefix) and (path == prefix or path.startswith(f"{prefix}/"))
    return path[len(prefix) :] if within else path
