"""The values of the global options: which database, and how to answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource


@dataclass(frozen=True, slots=True)
class Settings:
    """The global options of one invocation. Several databases are separated by spaces."""

    database: str | None = None
    listen_database: str | None = None
    read_database: str | None = None
    redis: str | None = None
    prepare: bool | None = None
    data: Path | None = None
    schema: str = "holdfast"
    json: bool = False
    debug: bool = False

    def arguments(self) -> list[str]:
        """Return the options as arguments of a child process, without the database's URLs.

        These may hold a password, and other users can see the arguments of a process. They are
        passed in the child's environment.
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
        """Return the variables to add to the environment of a child process."""
        added: dict[str, str] = {}
        if self.database is not None:
            added["HOLDFAST_DATABASE_URL"] = self.database
        if self.database is not None or self.listen_database is not None:
            added["HOLDFAST_LISTEN_DATABASE_URL"] = self.listen_database or ""
        if self.database is not None or self.read_database is not None:
            added["HOLDFAST_READ_DATABASE_URL"] = self.read_database or ""
        if self.redis is not None:
            added["HOLDFAST_REDIS_URL"] = self.redis
        return added


def settings_of(context: click.Context) -> Settings:
    """Return the settings of the invocation that a command belongs to."""
    return context.find_root().ensure_object(Settings)


def change(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Record a global option, at any place on the command line."""
    texts = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
    if "" in texts:  # an unset shell variable must not select another database
        raise click.BadParameter("it is empty", ctx=context, param=parameter)
    # An option that is not given must not overwrite the one that was given before.
    if context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE:
        root = context.find_root()
        joined = " ".join(map(str, texts)) if isinstance(value, tuple) else value
        fields: dict[str, Any] = {str(parameter.name): joined}
        root.obj = replace(root.ensure_object(Settings), **fields)
