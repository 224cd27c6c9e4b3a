"""The names of classes, the same whichever way a program was started."""

from __future__ import annotations

import functools
import sys
from pathlib import Path


def class_name(kind: type) -> str:
    """Return a class's qualified name.

    A class of the file that is run has the module `__main__` there, and the file's name if it is
    imported: the latter is written to logs.
    """
    module = kind.__module__
    return f"{_main_module() if module == '__main__' else module}.{kind.__qualname__}"


@functools.cache
def _main_module() -> str:
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:  # python -m
        return str(spec.name)
    if not isinstance(file, str):  # typed in
        return "__main__"
    return importable(Path(file).resolve())[1]


def importable(path: Path) -> tuple[Path, str]:
    """Return the directory to import a file from, and the module's name with its packages."""
    parts, directory = [path.stem], path.parent
    while (directory / "__init__.py").exists():
        parts.insert(0, directory.name)
        directory = directory.parent
    return directory, ".".join(parts)
