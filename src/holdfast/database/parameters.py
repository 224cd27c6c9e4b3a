"""The parameters of a database URL: which the driver takes, which are mapped, which left out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Final

import msgspec

from holdfast.errors import InvalidDatabaseURL
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.database")

CONNECT_SECONDS: Final = 10.0
# For each of several hosts: a silent one must not use up the time of the others.
_CONNECT_SECONDS_OF_SEVERAL: Final = 4.0

# The driver reads these as libpq does.
_DRIVER: Final = frozenset(
    {
        "gsslib", "krbsrvname", "passfile", "service", "ssl_max_protocol_version",
        "ssl_min_protocol_version", "sslcert", "sslcrl", "sslkey", "sslmode", "sslnegotiation",
        "sslpassword", "sslrootcert", "target_session_attrs",
    }
)  # fmt: skip
_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")

# These ask for a protection that the driver does not have: leaving them out needs a warning.
_PROTECTIONS: Final = {
    "channel_binding": "use sslmode=verify-full with sslrootcert=system, or your provider's file",
    "require_auth": "let the server's pg_hba.conf decide how roles log in",
    "requirepeer": "see that only the server's account can write to the socket's folder",
    "gssencmode": "use sslmode=require",
    "sslcertmode": "let the server's pg_hba.conf ask for a certificate",
    "sslcrldir": "use sslcrl with a file",
}
_HARMLESS_VALUES: Final = frozenset({"", "prefer", "disable", "allow", "none"})

# Parameters of libpq and of other drivers that have no meaning here: texts are always in UTF-8.
_MEANINGLESS: Final = frozenset(
    {
        "async_fallback", "client_encoding", "connection_limit", "gssdelegation", "hostaddr",
        "load_balance_hosts", "max_protocol_version", "min_protocol_version", "pool",
        "pool_timeout", "prepared_statement_name_func", "replication", "schema",
        "scram_client_key", "scram_server_key", "servicefile", "socket_timeout", "sslaccept",
        "sslcompression", "sslkeylogfile", "sslsni", "supa", "uselibpqcompat",
    }
)  # fmt: skip
# How other drivers say that a pooler is in between.
_UNPREPARED: Final = {
    "pgbouncer": "true",
    "prepareThreshold": "0",
    "prepared_statement_cache_size": "0",
    "prepared_statements": "false",
    "statement_cache_size": "0",
}
_SSL_WORDS: Final = {"true": "require", "1": "require", "false": "disable", "0": "disable"}


class Keepalive(msgspec.Struct, frozen=True):
    """When the kernel asks whether a silent peer is there; milliseconds in `user_timeout`."""

    on: bool = True
    idle_seconds: int = 20
    interval_seconds: int = 5
    count: int = 3
    user_timeout: int = 20_000


class Parameters(msgspec.Struct, frozen=True):
    """What a URL says besides the hosts, the login and the database.

    `driver` goes to the driver under libpq's names, `settings` to the server. `prepare` is False
    if the URL says that a pooler is in between.
    """

    driver: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    settings: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    attributes: str = "any"
    connect_seconds: float = CONNECT_SECONDS
    keepalive: Keepalive = Keepalive()
    prepare: bool | None = None

    @property
    def system_roots(self) -> bool:
        """True if the server's certificate is checked against the system's authorities."""
        return self.driver.get("sslrootcert") == "system"


def read_parameters(given: Mapping[str, str], what: str, *, several: bool) -> Parameters:
    """Return a URL's parameters, sorted by who reads them; `several` means several hosts.

    Of several hosts the engine needs the one that can be written to, so that one is looked for
    unless `target_session_attrs` says otherwise.

    Raises:
        InvalidDatabaseURL: a value cannot be read, or names a file that is not there.
    """
    left = dict(given)
    seconds = _number(left, "connect_timeout", 0, what)
    most = _CONNECT_SECONDS_OF_SEVERAL if several else CONNECT_SECONDS
    keepalive = _keepalive(left, what)
    prepare = None
    for name, value in _UNPREPARED.items():
        if left.pop(name, "").lower() == value:
            prepare = False
    if "ssl" in left:  # as SQLAlchemy's asyncpg dialect and others have it
        word = left.pop("ssl").lower()
        left.setdefault("sslmode", _SSL_WORDS.get(word, word))
    if "fallback_application_name" in left:
        left.setdefault("application_name", left.pop("fallback_application_name"))
    driver = {name: left.pop(name) for name in _DRIVER & left.keys() if left[name]}
    _check_files(driver, what)
    attributes = driver.pop("target_session_attrs", "read-write" if several else "any")
    for name in sorted((_PROTECTIONS.keys() | _MEANINGLESS) & left.keys()):
        _leave_out(name, left.pop(name))
    settings = {name: value for name, value in left.items() if value and name not in _DRIVER}
    return Parameters(
        driver, settings, attributes, float(seconds) if seconds > 0 else most, keepalive, prepare
    )


def _keepalive(left: dict[str, str], what: str) -> Keepalive:
    usual = Keepalive()
    return Keepalive(
        on=_number(left, "keepalives", 1, what) != 0,
        idle_seconds=_number(left, "keepalives_idle", 0, what) or usual.idle_seconds,
        interval_seconds=_number(left, "keepalives_interval", 0, what) or usual.interval_seconds,
        count=_number(left, "keepalives_count", 0, what) or usual.count,
        user_timeout=_number(left, "tcp_user_timeout", 0, what) or usual.user_timeout,
    )


def _number(left: dict[str, str], name: str, default: int, what: str) -> int:
    text = left.pop(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise InvalidDatabaseURL(f"{what}: {name} is a whole number, not {text!r}") from None


def _check_files(driver: Mapping[str, str], what: str) -> None:
    """Refuse a file that cannot be read here: the driver would blame the server for it."""
    for name in _FILES:
        path = driver.get(name)
        if path is not None and path != "system" and not os.access(path, os.R_OK):
            raise InvalidDatabaseURL(f"{what}: {name} names {path!r}, which cannot be read")


@cache  # one message for each is enough
def _leave_out(name: str, value: str) -> None:
    if name in _PROTECTIONS and value.lower() not in _HARMLESS_VALUES:
        logger.warning(
            "the database URL asks for %s=%s, which this driver does not have; it connects "
            "without. Instead, %s",
            name,
            value,
            _PROTECTIONS[name],
        )
    else:
        logger.info("%s of the database URL means nothing here, and is left out", name)
