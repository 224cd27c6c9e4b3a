"""Find the apps that a shell can complete, by reading files: nothing is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_MOST_FILES = 2_000  # a shell waits for the answer
_LARGEST = 500_000  # bytes of a file
_app = re.compile(rb"^(\w+)[ \t]*(?::[^=\n]+)?=[ \t]*(?:\w+\.)*App\(", re.MULTILINE)


def find_app_names(directory: Path) -> Iterator[str]:
    """Yield `module:app` for each `app = App(` in the modules of a directory and its packages."""
    for index, path in enumerate(_modules(directory)):
        if index == _MOST_FILES:
            return
        relative = path.relative_to(directory).with_suffix("")
        parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
        for name in _names(path):
            yield f"{'.'.join(parts)}:{name}"


def _modules(directory: Path) -> Iterator[Path]:
    """Yield the Python files of a directory, then those of the packages in it."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: (entry.is_dir(), entry.name))
    except OSError:
        return
    for entry in entries:
        name = entry.name.removesuffix(".py")
        if not name.isidentifier():
            continue
        if entry.is_file() and entry.name.endswith(".py"):
            yield Path(entry.path)
        elif entry.is_dir() and Path(entry.path, "__init__.py").is_file():
            yield from _modules(Path(entry.path))


def _names(path: Path) -> list[str]:
    try:
        if path.stat().st_size > _LARGEST:
            return []
        return [name.decode() for name in _app.findall(path.read_bytes())]
    except OSError:
        return []
