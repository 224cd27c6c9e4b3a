"""Who looks at a page: a cookie that a token was traded for, or what the API accepts as well.

A cookie has the name of the token's holder, an expiry, a number of its own, and an HMAC by the
token's digest. So the server keeps no sessions, and a token that is revoked ends those that were
opened with it. The number tells browsers apart that log in with one token.
"""

from __future__ import annotations

import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, Protocol, runtime_checkable
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from holdfast.server.access import Principal, refused
from holdfast.server.site import Site

COOKIE: Final = "holdfast"
LASTS_SECONDS: Final = 30 * 86_400


@runtime_checkable
class Tokens(Protocol):
    """A way to tell who asks by a token, which pages trade for a cookie."""

    def of_token(self, token: str) -> Principal | None:
        """Return who has a token, None for one that nobody has."""
        ...

    def holder(self, name: str) -> tuple[Principal, str] | None:
        """Return who has this name, with the digest of the token."""
        ...


async def who(site: Site, request: Request) -> Principal:
    """Return who asks for a page. Raises Problem 401 for one who is not known."""
    tokens = site.access
    text = request.cookies.get(COOKIE)
    if "authorization" not in request.headers and isinstance(tokens, Tokens):
        found = None if text is None else read_cookie(tokens, text)
        if found is None:
            raise refused("log in first")
        return found
    return await site.access.principal(request)


def read_cookie(tokens: Tokens, text: str) -> Principal | None:
    """Return whose a cookie is, None for one that is not ours, is too old, or was revoked."""
    name, _, rest = text.partition(".")
    expiry, _, rest = rest.partition(".")
    number, _, proof = rest.partition(".")
    try:
        holder = tokens.holder(urlsafe_b64decode(name).decode())
        late = int(expiry) < time.time() if len(expiry) < 16 else True
    except ValueError:
        return None
    if holder is None or late:
        return None
    wanted = _proof(holder[1], name, expiry, number).encode()
    # As bytes: texts with other characters than ASCII are not compared but raise.
    return holder[0] if hmac.compare_digest(proof.encode("utf-8", "replace"), wanted) else None


def set_cookie(request: Request, response: Response, tokens: Tokens, name: str) -> None:
    """Let a response open a session for the holder of a token."""
    holder = tokens.holder(name)
    if holder is None:
        return
    encoded = urlsafe_b64encode(name.encode()).decode()
    expiry, number = str(int(time.time()) + LASTS_SECONDS), secrets.token_hex(8)
    response.set_cookie(
        COOKIE,
        f"{encoded}.{expiry}.{number}.{_proof(holder[1], encoded, expiry, number)}",
        max_age=LASTS_SECONDS,
        path=cookie_path(request),
        secure=is_https(request),
        httponly=True,
        samesite="strict",
    )


def is_https(request: Request) -> bool:
    """Return True if the browser speaks TLS, to this server or to a proxy before it.

    The headers of a proxy are believed without asking who sent them: one that is made up makes the
    cookie of its sender narrower, and nothing else.
    """
    proto = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    forwarded = request.headers.get("forwarded", "").partition(",")[0].lower()
    parts = [each.strip().replace('"', "") for each in forwarded.split(";")]
    return "https" in (request.url.scheme, proto) or "proto=https" in parts


def cookie_path(request: Request) -> str:
    """Return where the cookie is sent: below the place where the server is mounted."""
    return quote(str(request.scope.get("root_path", "")).rstrip("/")) or "/"


def _proof(digest: str, name: str, expiry: str, number: str) -> str:
    return hmac.new(digest.encode(), f"{name}.{expiry}.{number}".encode(), "sha256").hexdigest()
