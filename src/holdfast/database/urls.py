"""Reading a database URL: its hosts, its login, and libpq's parameters as the driver takes them.

URLs are written for libpq: by people, by hosts of PostgreSQL, by other drivers' documentation.
The driver knows some of the parameters and would send the others to the server, which refuses
those that it does not know. So each is passed on, mapped, or left out with a log message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode

from holdfast.database.parameters import Parameters, read_parameters
from holdfast.errors import InvalidDatabaseURL

__all__ = ["FORM", "Target", "read_url", "redact", "split_urls"]

FORM: Final = "postgresql://user:password@host:5432/database"
_SCHEME: Final = re.compile(r"postgres(?:ql)?(?:\+\w+)?")
_HOST: Final = re.compile(r"(?P<host>\[[^\[\]]+\]|[^:\[\]]*)(?::(?P<port>\d*))?")
_SECRETS: Final = frozenset({"password", "sslpassword"})
_PORT: Final = 5432
_BETWEEN: Final = re.compile(r",?\s+(?=[a-zA-Z][\w+.-]*://)")


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """Where and how to connect. `hosts` is empty if the environment decides ($PGHOST)."""

    url: str
    hosts: tuple[tuple[str, int], ...] = ()
    user: str | None = None
    password: str | None = None
    database: str | None = None
    parameters: Parameters = field(default_factory=Parameters)

    def __repr__(self) -> str:
        return f"Target({redact(self.url)!r})"


def read_url(url: str, source: str | None = None) -> Target:
    """Read a URL. A bad one is not repeated in the error: it may hold a secret.

    Raises:
        InvalidDatabaseURL: it is not a PostgreSQL URL, or a part of it cannot be read.
    """
    what = f"the URL from {source}" if source else "the database URL"
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        raise InvalidDatabaseURL(f"{what} has no scheme: write {FORM}")
    if not _SCHEME.fullmatch(scheme):
        raise InvalidDatabaseURL(
            f"{what} is for {scheme!r}; holdfast needs PostgreSQL: write {FORM}"
        )
    authority, path, query = _split(rest)
    if "://" in path:
        raise InvalidDatabaseURL(f"{what} has a second ://: write a space between several URLs")
    login, _, places = authority.rpartition("@")
    user, _, password = login.partition(":")
    given = dict(parse_qsl(query, keep_blank_values=True))
    places = ",".join(filter(None, [places])) or given.pop("host", "") or given.get("hostaddr", "")
    given.pop("host", None)
    hosts = _hosts(places, given.pop("port", ""), what)
    apart = {name: given.pop(name, "") for name in ("user", "password", "dbname", "database")}
    return Target(
        url=f"postgresql://{rest}",
        hosts=hosts,
        user=unquote(user) or apart["user"] or None,
        password=unquote(password) or apart["password"] or None,
        database=unquote(path[1:]) or apart["dbname"] or apart["database"] or None,
        parameters=read_parameters(given, what, several=len(hosts) > 1),
    )


def split_urls(text: str) -> list[str]:
    """Return the URLs in a text that names one or several: each begins after white space.

    A comma before that does not matter.

    >>> split_urls("postgresql://a/x?options=-c jit=off postgresql://b/y")
    ['postgresql://a/x?options=-c jit=off', 'postgresql://b/y']
    """
    return _BETWEEN.split(text.strip())


def redact(url: str) -> str:
    """Return a URL without the secrets in it."""
    scheme, separator, rest = url.partition("://")
    authority, path, query = _split(rest)
    login, at, places = authority.rpartition("@")
    user, colon, _ = login.partition(":")
    shown = f"{scheme}{separator}{user}{colon and ':***'}{at}{places}{path}"
    if not query:
        return shown
    given = {key: "***" if key in _SECRETS else value for key, value in parse_qsl(query)}
    return f"{shown}?{urlencode(given, safe='/*,:')}"


def _split(rest: str) -> tuple[str, str, str]:
    """Split what follows the scheme into authority, path with its slash, and query.

    Only `/` and `?` end the authority, as for libpq: pasted passwords may contain `#`.
    """
    before, _, query = rest.partition("?")
    authority, slash, path = before.partition("/")
    return authority, slash + path, query


def _hosts(places: str, ports: str, what: str) -> tuple[tuple[str, int], ...]:
    """Return the hosts of `host:port,host:port`, or of hosts and a separate list of ports."""
    if not places:
        return (("localhost", _port(ports, what)),) if ports else ()
    names = places.split(",")
    apart = ports.split(",") if ports else []
    if len(apart) not in (0, 1, len(names)):
        raise InvalidDatabaseURL(f"{what} has {len(names)} hosts and {len(apart)} ports")
    hosts: list[tuple[str, int]] = []
    for number, place in enumerate(names):
        beside = apart[number if len(apart) > 1 else 0] if apart else ""
        if unquote(place).startswith("/"):  # the folder of a socket
            hosts.append((unquote(place), _port(beside, what)))
            continue
        found = _HOST.fullmatch(place)
        if found is None:
            raise InvalidDatabaseURL(f"{what} has a host or port that cannot be read: write {FORM}")
        name = unquote(found["host"]).strip("[]") or "localhost"
        hosts.append((name, _port(found["port"] or beside, what)))
    return tuple(hosts)


def _port(text: str, what: str) -> int:
    if not text:
        return _PORT
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise InvalidDatabaseURL(f"{what} has a host or port that cannot be read: write {FORM}")
    return int(text)
