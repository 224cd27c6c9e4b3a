"""`holdfast server`: run the HTTP server; `holdfast server token` makes tokens for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli import exits
from holdfast.cli.exits import Refusal
from holdfast.cli.finding import check_seen
from holdfast.cli.framework import Group, command, option
from holdfast.cli.inputs import (
    app_option,
    duration,
    hide_payloads_option,
    log_level_option,
    only_option,
)
from holdfast.cli.settings import Settings, settings_of

if TYPE_CHECKING:
    from socket import socket

    from holdfast.database.resolve import Database
    from holdfast.server.access import Access

_TOKENS_FILE: Final = "HOLDFAST_TOKENS_FILE"
_HERE: Final = "holdfast.cli.commands.server"


@click.group(
    "server",
    cls=Group,
    invoke_without_command=True,
    sources={"token": f"{_HERE}:token"},
    examples=(
        "holdfast server",
        "holdfast server --app shop:app --port 9000",
        "holdfast server --host 0.0.0.0 --auth tokens --allowed-host ops.example.com",
    ),
)
@option("--host", "The address to listen at.", default="127.0.0.1")
@option(
    "--port",
    "The port to listen at; 0 for one that is free.",
    type=click.IntRange(0, 65535),
    default=7433,
)
@option(
    "--auth",
    "Who may ask: holders of this machine's key, of a token in $HOLDFAST_TOKENS_FILE, whom a "
    "trusted proxy names, or any.",
    type=click.Choice(("key", "tokens", "proxy", "any")),
    default="key",
)
@option(
    "--auth-header NAME",
    "With --auth proxy: the header that names the caller.",
    default="X-Forwarded-User",
)
@option(
    "--scope-header NAME",
    "With --auth proxy: the header with read, write or admin. Default: all may do all.",
)
@option(
    "--limits-header NAME",
    "With --auth proxy: the header with only=APP,APP/WORKFLOW and payloads=hidden, as a line "
    "of tokens has them. A request without it is not limited.",
)
@option(
    "--trusted-proxy NETWORK...",
    "A network of the proxy, such as 10.0.0.0/8; may be repeated.",
    name="proxies",
)
@option(
    "--allowed-host HOST...",
    "A name that the server answers to, besides those of this machine; may be repeated.",
    name="hosts",
)
@option("--read-only", "Change nothing.")
@option(
    "--max-body BYTES",
    "Refuse larger bodies of requests.",
    type=click.IntRange(1, 64 * 1024 * 1024),
    default=1024 * 1024,
)
@option(
    "--max-streams N",
    "Refuse more than N open streams and waits.",
    type=click.IntRange(1),
    default=500,
)
@option(
    "--max-streams-each N",
    "Refuse more than N open streams and waits of one caller.",
    type=click.IntRange(1),
    default=250,
)
@option(
    "--root-path PATH",
    "The prefix that a proxy strips from paths: /holdfast.",
    default="",
    show_default=False,
)
@option(
    "--grace TIME", "How long requests may continue after SIGTERM.", type=duration, default="10s"
)
@app_option
@log_level_option
@option("--log-json", "Write the log as one JSON object a line.")
@click.pass_context
def server(
    context: click.Context,
    /,
    host: str,
    port: int,
    auth: str,
    auth_header: str,
    scope_header: str | None,
    limits_header: str | None,
    proxies: tuple[str, ...],
    hosts: tuple[str, ...],
    root_path: str,
    grace: float,
    app_reference: str | None,
    log_level: str,
    log_json: bool,
    **options: Any,
) -> None:
    """Serve the dashboard and the REST API over HTTP.

    It has no state of its own: any number of servers may run on one database. With --app, inputs
    are checked against the types that the app declares, and the dashboard has forms for them. By
    default it listens on this machine only, and a request must have the key in server.key of the
    data home: `Authorization: Bearer KEY`; the dashboard asks for it once. At another address,
    callers need tokens of their own, or a proxy that says who they are.

    SIGTERM and Ctrl-C end streams at once and let requests finish.
    """
    if context.invoked_subcommand is not None:
        return
    exits.end_at_sigterm(context)
    import asyncio

    from holdfast.cli.connecting import checked_database
    from holdfast.cli.process.interpreter import loop_factory
    from holdfast.cli.process.loading import load_app
    from holdfast.cli.process.logs import configure
    from holdfast.server.guard import LOOPBACK
    from holdfast.server.tokens import KEY_NAME

    settings = settings_of(context)
    configure(as_json=log_json, debug=settings.debug, level=log_level)
    if root_path and (not root_path.startswith("/") or root_path.endswith("/")):
        raise click.UsageError("--root-path is a path such as /holdfast")
    access = _access(settings, host, auth, proxies, auth_header, scope_header, limits_header)
    app = load_app(app_reference)
    with checked_database(settings) as database:
        bound = _bind(host, port)
        shown = f"[{host}]" if ":" in host else host
        ready = f"serving {database} at http://{shown}:{bound.getsockname()[1]}{root_path}"
        if auth == "key":
            ready += f"\nlog in with the key in {_home(settings) / KEY_NAME}"
        options |= {"schema": settings.schema, "hosts": (*LOOPBACK, host, *hosts)}
        options |= {"auth": access, "app": app}
        serving = _serve(database, bound, grace, root_path, ready, options)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            interrupted = runner.run(serving)
        context.exit(exits.INTERRUPTED if interrupted else exits.OK)


def _bind(host: str, port: int) -> socket:
    from holdfast.server.running import bind

    try:
        return bind(host, port)
    except OSError as error:
        raise Refusal(
            f"cannot listen at {host} port {port}: {error.strerror}; choose another with "
            "--host and --port",
            exits.USAGE,
        ) from None


async def _serve(
    database: Database,
    bound: socket,
    grace_seconds: float,
    root_path: str,
    ready: str,
    options: dict[str, Any],
) -> bool:
    """Serve until SIGTERM or Ctrl-C; return True if it was Ctrl-C."""
    from contextlib import suppress

    from holdfast.database.keeping import kept_running
    from holdfast.errors import DatabaseError
    from holdfast.server.running import STREAM_SECONDS, run
    from holdfast.server.server import Server

    async with kept_running(database):
        served = Server(database, stream_seconds=STREAM_SECONDS, **options)
        if database.connecting.read_url is not None:
            with suppress(DatabaseError):  # it is opened again at the first request
                await served.site.open()  # refuses one that is not a replica
        return await run(
            served,
            bound,
            grace_seconds=grace_seconds,
            root_path=root_path,
            ready=lambda: click.echo(ready, err=True),
        )


def _access(
    settings: Settings,
    host: str,
    auth: str,
    proxies: tuple[str, ...],
    auth_header: str,
    scope_header: str | None,
    limits_header: str | None,
) -> Access:
    """Return who may ask. Refuse what would leave a server open to others."""
    from holdfast.server.access import AnyAccess, KeyAccess, ProxyAccess
    from holdfast.server.guard import LOOPBACK
    from holdfast.server.tokens import TokenAccess, machine_key

    if auth in ("key", "any") and host not in LOOPBACK and not (auth == "any" and proxies):
        raise Refusal(
            f"--auth {auth} is for this machine only, and {host} is reached from others: make "
            "tokens with `holdfast server token` and use --auth tokens, or --auth proxy",
            exits.USAGE,
        )
    if auth == "proxy":
        return ProxyAccess(proxies, auth_header, scope_header, limits_header)
    for name, given in (("--scope-header", scope_header), ("--limits-header", limits_header)):
        if given is not None:  # not read, it would let all callers do and see more
            raise Refusal(f"{name} is for --auth proxy, and this is {auth}", exits.USAGE)
    if auth == "any":
        return AnyAccess(proxies)
    if auth == "tokens":
        path = os.environ.get(_TOKENS_FILE)
        if not path:
            raise Refusal(
                f"--auth tokens needs ${_TOKENS_FILE}: the path of a file with the lines that "
                "`holdfast server token NAME LEVEL` writes",
                exits.USAGE,
            )
        return TokenAccess(Path(path))
    return KeyAccess(machine_key(_home(settings)))


def _home(settings: Settings) -> Path:
    """Return where the key of this machine is kept."""
    from holdfast.database.embedded import default_home

    return (settings.data or default_home()).expanduser()


@command(
    "token",
    examples=(
        "holdfast server token ci write >> tokens",
        "holdfast server token support write --only shop --hide-payloads >> tokens",
    ),
)
@click.argument("name")
@click.argument("level", type=click.Choice(("read", "write", "admin")))
@only_option
@hide_payloads_option
@click.pass_context
def token(
    context: click.Context, name: str, level: str, only: tuple[str, ...], hide_payloads: bool
) -> None:
    """Make a token for the caller NAME; it may read, write, or do everything.

    Its line for the file $HOLDFAST_TOKENS_FILE is written to stdout, the token itself to stderr:
    it is shown once. Removing the line closes the token at once. With --only the database is asked
    if there are such apps and workflows.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.server.access import digest, limits_text
    from holdfast.server.tokens import new_token
    from holdfast.values.names import check_app_name

    check_app_name(name)
    if only:
        with_link(settings_of(context), lambda link: check_seen(link.store, only))
    made = new_token()
    click.echo(f"{name} {level} {digest(made)}{limits_text(only, payloads=not hide_payloads)}")
    click.echo(made, err=True)
