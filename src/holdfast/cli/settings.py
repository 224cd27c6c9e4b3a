"""What the global options say: which database, and how to answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource


@dataclass(frozen=True, slots=True)
class Settings:
    """The global options of one invocation."""

    database: str | None = None
    listen_database: str | None = None
    prepare: bool | None = None
    data: Path | None = None
    schema: str = "holdfast"
    json: bool = False
    debug: bool = False

    def arguments(self) -> list[str]:
        """Write the options again, for a child process. The database's URLs are left out.

        They may hold a password, and other users see a process's arguments: they go into the
        child's environment.
        """
        arguments: list[str] = []
        if self.data is not None and self.database is None:
            arguments += ["--data", str(self.data)]
        if self.schema != "holdfast":
            arguments += ["--schema", self.schema]
        if self.prepare is not None:
            arguments.append("--prepare" if self.prepare else "--no-prepare")
        if self.debug:
            arguments.append("--debug")
        return arguments

    def environment(self) -> dict[str, str]:
        """Return what a child process's environment adds."""
        added: dict[str, str] = {}
        if self.database is not None:
            added["HOLDFAST_DATABASE_URL"] = self.database
        if self.database is not None or self.listen_database is not None:
            added["HOLDFAST_LISTEN_DATABASE_URL"] = self.listen_database or ""
        return added


def settings_of(context: click.Context) -> Settings:
    """Return the settings of the invocation that a command belongs to."""
    return context.find_root().ensure_object(Settings)


def change(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Take a global option, wherever on the command line it stands."""
    if value == "":  # a variable that was never set must not lead to another database
        raise click.BadParameter("it is empty", ctx=context, param=parameter)
    # One that was not given leaves what stands.
    if context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE:
        root = context.find_root()
        fields: dict[str, Any] = {str(parameter.name): value}
        root.obj = replace(root.ensure_object(Settings), **fields)
