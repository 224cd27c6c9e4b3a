"""Who may do what: the ways to say who asks, and the levels of what they may do.

The API takes an Authorization header (or that of a trusted proxy) and never a cookie.
"""

from __future__ import annotations

import hmac
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, Literal, Protocol, TypeAlias

from starlette.requests import Request

from holdfast.errors import ConfigurationError
from holdfast.server.problems import Problem
from holdfast.types import Value
from holdfast.values.names import check_reference, split_name

Level: TypeAlias = Literal["read", "write", "admin"]
LEVELS: Final[tuple[Level, ...]] = ("read", "write", "admin")

_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, token

Network: TypeAlias = IPv4Network | IPv6Network


class Principal(Value, frozen=True):
    """A person or a program that asks, and the most that it may do.

    With `only` it sees the runs of these apps, or of workflows given as `app/name`: others do not
    exist for it. If it may not see `payloads`, a mark stands in the place of each.
    """

    name: str
    level: Level
    only: tuple[str, ...] = ()
    payloads: bool = True

    def __post_init__(self) -> None:
        # A text would show what has a name that is a part of it.
        if isinstance(self.only, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"only={self.only!r} is a text: write a tuple of names")

    @property
    def sees_all(self) -> bool:
        """True if nothing is kept from it."""
        return self.payloads and not self.only

    def may(self, level: Level) -> bool:
        """Return True if it may do what needs this level: each includes those before it."""
        return LEVELS.index(self.level) >= LEVELS.index(level)

    def sees(self, name: str) -> bool:
        """Return True for the full name of a workflow, a flow or an activity that it may see."""
        app = split_name(name)[0]
        return not self.only or (app != "" and (app in self.only or name in self.only))


ANYONE: Final = Principal("anyone", "read")
"""Who asks for what is open to all."""


class Access(Protocol):
    """A way to tell who asks."""

    async def principal(self, request: Request) -> Principal:
        """Return who asks. Raises Problem 401 for a request that does not say, or not rightly."""
        ...

    def still(self, principal: Principal) -> bool:
        """Return True while this principal may still do what it could."""
        ...


def refused(why: str) -> Problem:
    """Return the answer to a request that does not say who asks."""
    return Problem(
        401, "unauthorized", why, headers={"WWW-Authenticate": 'Bearer realm="holdfast"'}
    )


def bearer(request: Request) -> str:
    """Return the token of the Authorization header. Raises Problem 401."""
    given = request.headers.getlist("authorization")
    if not given:
        raise refused("send an Authorization header: Bearer and a token")
    scheme, _, token = given[0].partition(" ")
    if len(given) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise refused("the Authorization header is not Bearer and one token")
    return token.strip()


def header_texts(request: Request, name: str) -> list[str]:
    """Return the values of a header. Raises Problem 400 for one that is not UTF-8."""
    try:  # Starlette has read each byte as one character
        return [each.encode("latin-1").decode() for each in request.headers.getlist(name)]
    except UnicodeDecodeError:
        raise Problem(400, "bad-header", f"the header {name} is not UTF-8") from None


def digest(token: str) -> str:
    """Return the digest of a token: files keep it in the place of the token."""
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class _Unrevoked:
    """The base of those that cannot take access back from a stream or a wait under way."""

    def still(self, principal: Principal) -> bool:
        """Return True: the caller is checked again at its next request."""
        return True


class KeyAccess(_Unrevoked):
    """One token opens everything."""

    def __init__(self, key: str) -> None:
        self._digest = digest(key)

    async def principal(self, request: Request) -> Principal:
        """Return the holder of the key. Raises Problem 401."""
        found = self.of_token(bearer(request))
        if found is None:
            raise refused("the token is not the key of this server")
        return found

    def of_token(self, token: str) -> Principal | None:
        """Return who has a token, None for one that is not the key."""
        same = hmac.compare_digest(digest(token), self._digest)
        return Principal("key", "admin") if same else None

    def holder(self, name: str) -> tuple[Principal, str] | None:
        """Return who has this name, with the digest of the token; for sessions of browsers."""
        return (Principal("key", "admin"), self._digest) if name == "key" else None


class AnyAccess(_Unrevoked):
    """A header must be there, and is not checked: for this machine, or behind a proxy that does."""

    def __init__(self, proxies: Sequence[str] = ()) -> None:
        """Take requests of these networks, by default of all."""
        self._networks = read_networks(proxies)

    async def principal(self, request: Request) -> Principal:
        """Return a principal that may do everything. Raises Problem 401 without a header."""
        if self._networks and not is_within(request, self._networks):
            raise refused("requests must come through the proxy")
        if not request.headers.get("authorization", "").strip():
            raise refused("send an Authorization header")
        return Principal("any", "admin")


class ProxyAccess(_Unrevoked):
    """A proxy has checked who asks, and names them in a header.

    Other headers may say the level of the caller, and what it may see.
    """

    def __init__(
        self,
        networks: Sequence[str],
        name_header: str,
        scope_header: str | None = None,
        limits_header: str | None = None,
    ) -> None:
        if not networks:
            raise ConfigurationError("name the networks of the proxy with --trusted-proxy")
        self._networks = read_networks(networks)
        for each in (name_header, scope_header, limits_header):
            if each is not None and not _HEADER.fullmatch(each):
                raise ConfigurationError(f"{each!r} is not the name of a header")
        self._name_header, self._scope_header = name_header, scope_header
        self._limits_header = limits_header

    async def principal(self, request: Request) -> Principal:
        """Return whom the proxy names. Raises Problem 401 for a request past the proxy."""
        if not is_within(request, self._networks):
            raise refused("requests must come through the proxy")
        names = header_texts(request, self._name_header)
        if len(names) != 1 or not names[0].strip():
            raise refused("the proxy did not say who asks")
        level: str = "admin"
        if self._scope_header is not None:
            levels = request.headers.getlist(self._scope_header)
            level = levels[0].strip() if len(levels) == 1 else ""
        if level not in LEVELS:
            raise refused("the proxy did not say what the caller may do")
        only, payloads = self._limits(request)
        return Principal(names[0].strip()[:200], level, only, payloads)

    def _limits(self, request: Request) -> tuple[tuple[str, ...], bool]:
        """Return what the caller may see: all without the header, never all because of it."""
        given = [] if self._limits_header is None else header_texts(request, self._limits_header)
        if not given:
            return (), True
        if len(given) > 1 or not given[0].strip():
            raise refused("the proxy did not say once what the caller may see")
        try:
            return read_limits(given[0].split())
        except ConfigurationError as error:
            raise refused(f"the proxy did not say what the caller may see: {error}") from None


Asked: TypeAlias = Callable[[Request], "Principal | Awaitable[Principal | None] | None"]


class AskedAccess(_Unrevoked):
    """The host program says who asks: for a server that is mounted in it."""

    def __init__(self, ask: Asked) -> None:
        self._ask = ask

    async def principal(self, request: Request) -> Principal:
        """Return whom the host names. Raises Problem 401 if that is None."""
        found = self._ask(request)
        if inspect.isawaitable(found):
            found = await found
        if found is None:
            raise refused("log in first")
        return found


def read_networks(networks: Sequence[str]) -> tuple[Network, ...]:
    """Return networks. Raises ConfigurationError for what is not one."""
    try:
        return tuple(ip_network(each, strict=False) for each in networks)
    except ValueError as error:
        raise ConfigurationError(f"{error}: write 10.0.0.0/8, or one address") from None


def is_within(request: Request, networks: Sequence[Network]) -> bool:
    """Return True if the connection comes from one of the networks; headers do not count."""
    if request.client is None:
        return False
    try:
        address = ip_address(request.client.host)
    except ValueError:
        return False
    return any(address in each for each in networks)


def read_limits(words: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return what a caller may see: the apps and workflows (none for all), and if payloads.

    The words stand in a line of a file of tokens, or in a header that a proxy sets.

    >>> read_limits(["only=shop,mail/send", "payloads=hidden"])
    (('shop', 'mail/send'), False)

    Raises ConfigurationError for what is neither: a word that was misspelled must not open more.
    """
    found: dict[str, str] = {}
    for word in words:
        kind, _, value = word.partition("=")
        if kind in found or kind not in ("only", "payloads"):
            raise ConfigurationError(
                f"{word!r} does not say what a caller may see: write only=APP,APP/WORKFLOW or "
                "payloads=hidden, each once"
            )
        found[kind] = value
    if found.get("payloads", "hidden") != "hidden":
        raise ConfigurationError("write payloads=hidden, or nothing for a caller that sees them")
    only = found["only"].split(",") if "only" in found else []
    return tuple(check_reference("what is seen", each) for each in only), "payloads" not in found


def limits_text(only: Sequence[str], *, payloads: bool) -> str:
    """Return what `read_limits` reads, with a space before each word."""
    return (f" only={','.join(only)}" if only else "") + ("" if payloads else " payloads=hidden")
