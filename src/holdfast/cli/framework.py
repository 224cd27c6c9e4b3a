"""How commands are declared: imported when needed, global options anywhere, plain errors."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.cli import exits
from holdfast.cli.answers import answered
from holdfast.cli.render.hints import with_database
from holdfast.cli.settings import change, settings_of
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.values.suggestions import nearest
from holdfast.values.texts import clipped

F = TypeVar("F", bound=Callable[..., Any] | click.Command)

CommandSource = dict[str, str]  # the command's name -> "module:attribute"

_ANY_LENGTH = 1_000  # characters


class WholeSentence(click.Command):
    """A command whose first sentence is shown whole in the list of its group."""

    def get_short_help_str(self, limit: int = _ANY_LENGTH) -> str:
        """Return the first sentence; click would cut it off at 45 characters or so."""
        return super().get_short_help_str(_ANY_LENGTH)


class Command(WholeSentence):
    """A command that also accepts the global options, and shows its examples unchanged."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += global_options()
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, one a line."""
        write_lines(formatter, "Examples", self.examples)


class Group(WholeSentence, click.Group):
    """A group whose commands exist already, or are imported when they are needed."""

    def __init__(
        self,
        *args: Any,
        sources: CommandSource | None = None,
        examples: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.params += global_options()
        self.sources = sources or {}
        self.examples = tuple(examples)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order in which they are listed."""
        return [*self.sources, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; import it if it is not loaded yet."""
        source = self.sources.get(cmd_name)
        if source is None:
            return self.commands.get(cmd_name)
        module, _, attribute = source.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for an unknown one the error suggests similar ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = self._beside(ctx, args[0]) or self._below(ctx, args[0])
            near = near or nearest(args[0], self.list_commands(ctx))
            if not near or "Did you mean" in error.format_message():
                raise
            meant = f"{error.format_message()} Did you mean {' or '.join(near)}?"
            raise click.UsageError(meant, ctx) from None

    def _below(self, ctx: click.Context, name: str) -> list[str]:
        """Return `group name` for each group of this one that has a command of this name."""
        groups = [(each, self.get_command(ctx, each)) for each in self.list_commands(ctx)]
        return [
            f"{each} {name}"
            for each, group in groups
            if isinstance(group, Group) and name in group.list_commands(ctx)
        ]

    def _beside(self, ctx: click.Context, name: str) -> list[str]:
        """Return `group name` for groups of nearly this group's name that have the command."""
        above = ctx.parent.command if ctx.parent is not None else None
        if not isinstance(above, Group) or ctx.parent is None or self.name is None:
            return []
        return [
            each
            for each in above._below(ctx.parent, name)
            if nearest(each.partition(" ")[0], [self.name])
        ]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, one a line."""
        write_lines(formatter, "Examples", self.examples)


class RootGroup(Group):
    """The outermost group: an error of holdfast ends a command with one line and its exit code."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for each in self.params:
            if isinstance(each, click.Option):
                each.hidden = False

    def invoke(self, ctx: click.Context) -> object:
        """Run a command."""
        as_json = "--json" in ctx.args or settings_of(ctx).json
        try:
            _check_platform()
            return super().invoke(ctx)
        except HoldfastError as error:
            if settings_of(ctx).debug:
                raise
            code, text = exits.code_for(error), with_database(str(error))
            if as_json:
                _write_error(type(error).__name__, text, code)
            else:
                click.echo(f"holdfast: {text}", err=True)
            ctx.exit(code)
        except click.ClickException as error:
            if not as_json:
                raise
            _write_error("UsageError", error.format_message(), error.exit_code)
            ctx.exit(error.exit_code)
        except (KeyboardInterrupt, click.Abort):  # Abort: Ctrl-C at a prompt
            click.echo("", err=True)
            ctx.exit(exits.INTERRUPTED)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples and the exit codes."""
        super().format_epilog(ctx, formatter)
        write_lines(
            formatter, "Exit codes", [f"{code:>3}  {meaning}" for code, meaning in exits.MEANINGS]
        )


class FilePath(click.Path):
    """A path. One that no file can have is refused as it is read: it raised later."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        try:
            os.stat(value)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                self.fail(f"{clipped(value)}: {error.strerror}", param, ctx)
        except ValueError as error:
            self.fail(f"{clipped(value)}: {error}", param, ctx)
        return super().convert(value, param, ctx)


def _check_platform() -> None:
    if sys.platform == "win32":
        raise ConfigurationError(
            "commands need signals and file locks that Windows does not have: run them in WSL 2, "
            "see docs/howto/platforms.md"
        )


def _write_error(kind: str, message: str, code: int) -> None:
    """Write an error for scripts, as one JSON object on stderr."""
    import msgspec

    fields = {"error": {"type": kind, "message": message, "exit_code": code}}
    click.echo(msgspec.json.encode(fields), err=True)


def sources(module: str, *commands: str) -> CommandSource:
    """Return where the commands of a module are: `list:list_runs` is its function `list_runs`."""
    named = (each.partition(":") for each in commands)
    return {name: f"{module}:{fn or name.replace('-', '_')}" for name, _, fn in named}


def global_options() -> list[click.Parameter]:
    """Return the options that every command accepts; only the outermost group shows them."""

    def make(shown: str, help: str, **settings: Any) -> click.Option:
        names, settings = _declaration(shown, settings)
        return click.Option(
            names, help=help, hidden=True, expose_value=False, callback=change, **settings
        )

    return [
        make(
            "--database URL...",
            "The database. Default: $HOLDFAST_DATABASE_URL, then $DATABASE_URL, "
            "then the embedded PostgreSQL. Several, if they are shards of one engine: give it for "
            "each, in the order of their numbers.",
        ),
        make(
            "--data DIR",
            "The directory of the embedded PostgreSQL. Default: $HOLDFAST_HOME, then ~/.holdfast.",
            type=FilePath(file_okay=False, path_type=Path),
        ),
        make(
            "--listen-database URL",
            "The server's own address, for notifications; needed if --database is a pooler "
            "in transaction mode. Default: $HOLDFAST_LISTEN_DATABASE_URL, then the database.",
        ),
        make(
            "--read-database URL",
            "A streaming replica of the database, for lists, charts and the archive; never "
            "for what decides. Default: $HOLDFAST_READ_DATABASE_URL, then the database.",
        ),
        make(
            "--redis URL",
            "Redis or Valkey that wakes workers for new runs and activities. It holds nothing "
            "that could be lost. Default: $HOLDFAST_REDIS_URL, then none.",
        ),
        make(
            "--prepare/--no-prepare",
            "Prepare statements by name. Default: $HOLDFAST_PREPARE (on, off), then yes, "
            "unless a connection pooler is detected.",
            default=None,
            show_default=False,
        ),
        make("--schema NAME", "The schema in the database. Default: holdfast."),
        make("--json", "Answer in JSON, for scripts; errors are JSON on stderr."),
        make("--debug", "Show the traceback of an error of holdfast."),
    ]


def write_lines(formatter: click.HelpFormatter, title: str, lines: Sequence[str]) -> None:
    """Write a section, with lines that are not wrapped."""
    if not lines:
        return
    with formatter.section(title):
        for line in lines:
            formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def command(
    name: str, *, help: str | None = None, examples: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], Command]:
    """Declare a command with examples. Without `help`, the function's docstring is its help.

    An asynchronous function gets a client as its first argument, a `Link`, and returns its Answer.
    """

    def declare(function: Callable[..., Any]) -> Command:
        whole = answered(function) if iscoroutinefunction(function) else function
        return click.command(name, cls=Command, help=help, examples=examples)(whole)

    return declare


def option(
    shown: str, help: str | None = None, *, name: str | None = None, **settings: Any
) -> Callable[[F], F]:
    """Declare an option as `--help` shows it: `--limit N`, `-o --output FILE`.

    With `--tag TAG...` it may be repeated. Without a value, a type and a default it is a flag.
    `name` is that of the function's parameter, by default the option's. The help says what the
    default is. `settings` are those of click.
    """
    names, settings = _declaration(shown, settings)
    return click.option(*names, *([name] if name else []), help=help, **settings)


def _declaration(shown: str, settings: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the names of an option, and all of its settings for click; see `option`."""
    words = shown.split()
    names = [each for each in words if each.startswith("-")]
    if words[len(names) :]:
        settings["metavar"] = words[-1].removesuffix("...")
        settings["multiple"] = words[-1].endswith("...")
    elif not settings.keys() & {"type", "default"}:
        settings["is_flag"] = True
    if "default" in settings:
        settings.setdefault("show_default", True)
    return names, settings


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return one decorator for options that several commands have, in this order."""

    def declare(function: F) -> F:
        for each in reversed(options):
            function = each(function)
        return function

    return declare
