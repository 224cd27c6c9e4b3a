"""Webhooks: signatures of requests that are sent or received, and the URLs that runs open.

Events are delivered to URLs with the signatures of the Standard Webhooks specification, for which
receivers have libraries: the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`. The
signature is the HMAC-SHA256 of `ID.TIMESTAMP.BODY`, in base64 after `v1,`. What is posted to a URL
of a run may also have the signatures of Stripe or of GitHub.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Final, get_args
from urllib.parse import parse_qsl, quote, urlsplit

from holdfast.codec import decoder
from holdfast.errors import (
    ConfigurationError,
    InvalidInput,
    PayloadError,
    SignatureInvalid,
    WebhookSecretMissing,
)
from holdfast.types import WebhookBody, WebhookScheme

PUBLIC_URL_VARIABLE: Final = "HOLDFAST_PUBLIC_URL"
HOOKS: Final = "/v1/hooks/"

PREFIX: Final = "whsec_"  # of a secret that is base64
_TOLERANCE_SECONDS: Final = 300.0
_MOST_URL: Final = 2_048
_MOST_PORT: Final = 65_535
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_IN_HEADERS: Final = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
_LOCAL: Final = "http://127.0.0.1:7433"  # of `holdfast server` and `holdfast dev`
_FORM: Final = "application/x-www-form-urlencoded"
_variable = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")
_token = re.compile(r"[A-Za-z0-9_-]{43}")
_moment = re.compile(r"[0-9]{1,15}")  # of seconds since 1970
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
        name = host.removesuffix(".")
        inner = name == "localhost" or name.endswith(".localhost")
    if inner:
        raise ConfigurationError(
            f"{host} is an inner address: give allow_inner (on the command line --allow-inner) if "
            "events are to be sent there"
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

    `headers` are those of the request, in any case. Raises SignatureInvalid for a signature that is
    missing or wrong, and for a request that is `tolerance` seconds old.
    """
    given = {name.lower(): value for name, value in headers.items()}
    webhook_id, moment = given.get("webhook-id", ""), given.get("webhook-timestamp", "")
    signatures = given.get("webhook-signature", "").split()
    if not (webhook_id and _moment.fullmatch(moment) and signatures):
        raise SignatureInvalid("the request is not signed: a header webhook-… is missing or wrong")
    _check_age(moment, tolerance, now)
    expected = sign(secret, webhook_id, int(moment), body)
    if not any(hmac.compare_digest(expected.encode(), each.encode()) for each in signatures):
        raise SignatureInvalid("the signature is wrong")
    return webhook_id


def verify_as(
    scheme: WebhookScheme,
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: float = _TOLERANCE_SECONDS,
    now: float | None = None,
) -> None:
    """Check the signature of a request, by Standard Webhooks, as Stripe signs, or as GitHub does.

    `headers` are those of the request, in any case. Raises SignatureInvalid for a signature that is
    missing or wrong, and for a request that is `tolerance` seconds old. GitHub signs no time.
    """
    if scheme == "standard":
        verify(secret, headers, body, tolerance=tolerance, now=now)
        return
    given = {name.lower(): value for name, value in headers.items()}
    signed, signatures = body, [given.get("x-hub-signature-256", "").removeprefix("sha256=")]
    if scheme == "stripe":
        pairs = [
            each.strip().partition("=") for each in given.get("stripe-signature", "").split(",")
        ]
        moment = next((value for name, _, value in pairs if name == "t"), "")
        signatures = [value for name, _, value in pairs if name == "v1"]
        if not _moment.fullmatch(moment):
            raise SignatureInvalid(
                "the request is not signed: Stripe-Signature is missing or wrong"
            )
        _check_age(moment, tolerance, now)
        signed = f"{moment}.".encode() + body
    expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    if not any(hmac.compare_digest(expected.encode(), each.encode()) for each in signatures):
        raise SignatureInvalid("the signature is missing or wrong")


def _check_age(moment: str, tolerance: float, now: float | None) -> None:
    if abs((time.time() if now is None else now) - int(moment)) > tolerance:
        raise SignatureInvalid("the request is too old, or the clocks differ")


# URLs of runs


def new_token(drawn: bytes) -> str:
    """Return 32 bytes as the token of a URL."""
    return base64.urlsafe_b64encode(drawn).rstrip(b"=").decode()


def hook_url(token: str) -> str:
    """Return the URL of a run's webhook: below $HOLDFAST_PUBLIC_URL, or on this machine.

    Raises ConfigurationError for a variable that is not a URL.
    """
    base = os.environ.get(PUBLIC_URL_VARIABLE) or _LOCAL
    try:
        return f"{check_url(base).rstrip('/')}{HOOKS}{token}"
    except ConfigurationError:
        raise ConfigurationError(
            f"${PUBLIC_URL_VARIABLE} is where others reach the server, as https://shop.example.com"
        ) from None


def digest_of(url: str) -> str | None:
    """Return what is stored of the token that ends a URL, None for one that has none.

    >>> digest_of("https://shop.example.com/v1/hooks/nothing")
    """
    token = url.rpartition("/")[2]
    return hashlib.sha256(token.encode()).hexdigest() if _token.fullmatch(token) else None


def check_scheme(scheme: WebhookScheme) -> WebhookScheme:
    """Return how signatures are made. Raises ConfigurationError for a way that is not known."""
    if scheme not in get_args(WebhookScheme):
        known = ", ".join(get_args(WebhookScheme))
        raise ConfigurationError(f"scheme is one of {known}, not {scheme!r}")
    return scheme


def check_secret_name(name: str) -> str:
    """Return the name of a variable with a secret. Raises ConfigurationError, without the value."""
    if not isinstance(name, str) or not _variable.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            "secret is the name of an environment variable of the server, such as STRIPE_SECRET, "
            "not the secret itself: the log would show that"
        )
    return name


def secret_of(name: str, values: Mapping[str, str]) -> str:
    """Return the secret that a variable has. Raises WebhookSecretMissing."""
    found = values.get(name)
    if not found:
        raise WebhookSecretMissing(name)
    return found


def read_post(kind: WebhookBody, content_type: str, body: bytes) -> object:
    """Return the body of a POST: JSON or a form as values, a text, or bytes. Raises InvalidInput.

    >>> read_post("json", "application/x-www-form-urlencoded", b"a=1&b=2&b=3")
    {'a': '1', 'b': ['2', '3']}
    """
    if kind == "bytes":
        return body
    try:
        text = body.decode()
        if kind == "text":
            return text
        if content_type.partition(";")[0].strip().lower() == _FORM:
            return _read_form(text)
        return decoder(object)(body) if body else None
    except (UnicodeDecodeError, PayloadError, ValueError) as error:
        what = "UTF-8 text" if kind == "text" else "JSON or a form"
        raise InvalidInput(
            f"the body is not {what} ({error}): open the webhook with type=bytes for any other"
        ) from None


def _read_form(text: str) -> dict[str, object]:
    found: dict[str, list[str]] = {}
    for name, value in parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text)):
        found.setdefault(name, []).append(value)
    return {name: each[0] if len(each) == 1 else list(each) for name, each in found.items()}


def _key(secret: str) -> bytes:
    if secret.startswith(PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except binascii.Error:
            pass
    return secret.encode()
