"""Signatures of the requests by which events are delivered to URLs.

They are those of the Standard Webhooks specification, for which receivers have libraries: the
headers `webhook-id`, `webhook-timestamp` and `webhook-signature`. The signature is the HMAC-SHA256
of `ID.TIMESTAMP.BODY`, in base64 after `v1,`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from holdfast.errors import ConfigurationError, InvalidInput

PREFIX: Final = "whsec_"  # of a secret that is base64
_TOLERANCE_SECONDS: Final = 300.0
_MOST_URL: Final = 2_048
_MOST_PORT: Final = 65_535
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_IN_HEADERS: Final = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
_url = re.compile(
    r"https?://(\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9._-]+)(:[0-9]{1,5})?([/?][!-\"$-~]*)?", re.ASCII
)


def new_secret() -> str:
    """Return a secret that cannot be guessed."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def check_url(url: str) -> str:
    """Return a URL to which events can be sent. Raises ConfigurationError."""
    fits = _url.fullmatch(url) if isinstance(url, str) and len(url) <= _MOST_URL else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if fits is not None and int((fits[2] or ":80")[1:]) <= _MOST_PORT:
        return url
    raise ConfigurationError(
        f"{str(url)[:200]!r} is not a URL for events: it is http or https, a host, and if wanted a "
        "port, a path and a query, 2,048 characters in all; names and passwords have no place in it"
    )


def is_inner(address: str) -> bool:
    """Return True for an address that is not of the public internet.

    >>> [is_inner(each) for each in ("10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "8.8.8.8")]
    [True, True, True, False]
    """
    found: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(
        address.partition("%")[0]
    )
    if isinstance(found, ipaddress.IPv6Address):
        inside = found.ipv4_mapped or found.sixtofour
        if found in _NAT64:
            inside = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if found.teredo is not None:
            inside = found.teredo[1]
        if inside is not None:
            return is_inner(str(inside))
    return not found.is_global or found.is_multicast


def check_host(url: str) -> str:
    """Return a URL whose host is not an inner address. Raises ConfigurationError.

    What a name leads to is only known, and checked, when a request is sent.
    """
    host = urlsplit(url).hostname or ""
    try:
        address = socket.inet_ntoa(socket.inet_aton(host))  # also 127.1 and 2130706433
    except OSError:
        address = host
    try:
        inner = is_inner(address)
    except ValueError:  # a name
        inner = host == "localhost" or host.endswith(".localhost")
    if inner:
        raise ConfigurationError(
            f"{host} is an inner address: give allow_inner if events are to be sent there"
        )
    return url


def check_secret(secret: str | None) -> str:
    """Return a secret that can sign. Raises ConfigurationError, which does not show it."""
    length = len(secret.encode()) if isinstance(secret, str) else 0
    if secret is None or not 16 <= length <= 1024:
        raise ConfigurationError(f"a secret takes 16 to 1,024 bytes, not {length}")
    return secret


def webhook_id_of(event_id: str, subscription_id: int) -> str:
    """Return the id of a delivery. What a header cannot hold of an event's id is percent-encoded.

    >>> webhook_id_of("order 7/paid", 3)
    'order%207/paid/3'
    """
    return f"{quote(event_id, safe=_IN_HEADERS)}/{subscription_id}"


def sign(secret: str, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of the header `webhook-signature`.

    >>> sign("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg", 0, b"{}")[:3]
    'v1,'
    """
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    digest = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def verify(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: float = _TOLERANCE_SECONDS,
    now: float | None = None,
) -> str:
    """Return the id of a delivery whose signature is right; keep it to recognise a repetition.

    `headers` are those of the request, in any case. Raises InvalidInput for a signature that is
    missing or wrong, and for a request that is `tolerance` seconds old.
    """
    given = {name.lower(): value for name, value in headers.items()}
    webhook_id, moment = given.get("webhook-id", ""), given.get("webhook-timestamp", "")
    signatures = given.get("webhook-signature", "").split()
    if not (webhook_id and moment.isascii() and moment.isdigit() and signatures):
        raise InvalidInput("the request is not signed: a header webhook-… is missing or wrong")
    if abs((time.time() if now is None else now) - int(moment)) > tolerance:
        raise InvalidInput("the request is too old, or the clocks differ")
    expected = sign(secret, webhook_id, int(moment), body)
    if not any(hmac.compare_digest(expected.encode(), each.encode()) for each in signatures):
        raise InvalidInput("the signature is wrong")
    return webhook_id


def _key(secret: str) -> bytes:
    if secret.startswith(PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except binascii.Error:
            pass
    return secret.encode()
