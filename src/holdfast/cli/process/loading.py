"""Load the app that a command names: `module:app`, `path/file.py:app`, `module` or `file.py`."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from holdfast.definitions.app import App
from holdfast.errors import ConfigurationError
from holdfast.types.classes import importable

# The files whose frames are not shown: they lie between a command and the code of an app.
_MACHINERY = (
    str(Path(__file__).parent.parent) + os.sep,
    str(Path(importlib.__file__).parent) + os.sep,
    "<frozen importlib",
)


class AppNotLoaded(ConfigurationError):
    """The app's module raised while it was imported; the cause is its own exception."""


@dataclass(frozen=True, slots=True)
class AppReference:
    """Where an app is: `module` is imported from `directory`; `name` may be None."""

    module: str
    directory: Path
    name: str | None

    @classmethod
    def parse(cls, text: str) -> AppReference:
        """Read a reference. Raises ConfigurationError if there is no such file."""
        place, _, name = text.rpartition(":") if ":" in text else (text, "", "")
        if not place:
            raise ConfigurationError(f"{text!r} has no module: write module:app or file.py")
        if place.endswith(".py") or "/" in place:
            # Those of Path raise for a user that there is not, and a name that no file can have.
            path = Path(os.path.expanduser(place)).resolve()
            if not os.path.isfile(path):
                raise ConfigurationError(f"there is no file {place}")
            directory, module = importable(path)
        else:
            directory, module = Path.cwd(), place
        return cls(module, directory, name or None)

    def load(self) -> App:
        """Import the module and return its app.

        Raises:
            AppNotLoaded: the module's own code raised.
            ConfigurationError: there is no such module, or no app in it.
        """
        module = self._import()
        if self.name is not None:
            found: object = module
            for part in self.name.split("."):
                found = getattr(found, part, None)
            if isinstance(found, App):
                return found
            raise ConfigurationError(
                f"{self.module}:{self.name} is not an App" + _suggestion(_apps(module), self.module)
            )
        apps = _apps(module)
        if len(apps) == 1:
            return next(iter(apps.values()))
        count = "no App" if not apps else f"{len(apps)} Apps"
        raise ConfigurationError(
            f"module {self.module} has {count}{_suggestion(apps, self.module)}"
        )

    @property
    def origin(self) -> str | None:
        """The directory of the project of a loaded app; None for an installed package.

        It tells apart two projects on one database whose apps have the same name.
        """
        path = getattr(sys.modules[self.module], "__file__", None)
        if path is None or self.module.partition(".")[0] == "holdfast":
            return None
        directory, _ = importable(Path(path).resolve())
        return None if "site-packages" in directory.parts else str(directory)

    def _import(self) -> ModuleType:
        directory = str(self.directory)
        if directory not in sys.path:
            sys.path.insert(0, directory)
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{self.module}.".startswith(f"{error.name}."):
                raise ConfigurationError(
                    f"there is no module {self.module} in {directory} or elsewhere on Python's path"
                ) from None
            raise AppNotLoaded(_explain(self.module, error)) from error
        except Exception as error:
            raise AppNotLoaded(_explain(self.module, error)) from error


def _explain(module: str, error: Exception) -> str:
    """Return where the module's code raised, without frames of holdfast and of the import."""
    shown = traceback.TracebackException.from_exception(error)
    for each in _with_causes(shown):
        each.stack = traceback.StackSummary.from_list(
            [frame for frame in each.stack if not frame.filename.startswith(_MACHINERY)]
        )
    return f"module {module} cannot be imported:\n{''.join(shown.format()).rstrip()}"


def _with_causes(
    shown: traceback.TracebackException | None,
) -> Iterator[traceback.TracebackException]:
    if shown is not None:
        yield shown
        yield from _with_causes(shown.__cause__)
        yield from _with_causes(shown.__context__)


def _apps(module: ModuleType) -> dict[str, App]:
    """Return the apps of a module by their first names."""
    found: dict[str, App] = {}
    for name, value in vars(module).items():
        if isinstance(value, App) and not any(value is each for each in found.values()):
            found[name] = value
    return found


def _suggestion(apps: dict[str, App], module: str) -> str:
    if not apps:
        return ': it needs one, such as `app = App("shop")` with `from holdfast import App`'
    return ": name it, as in " + " or ".join(f"{module}:{name}" for name in apps)


def load_app(reference: str | None) -> App | None:
    """Load the app that an option names, None if it is not given."""
    return None if reference is None else AppReference.parse(reference).load()
