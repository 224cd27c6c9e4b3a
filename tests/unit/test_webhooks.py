"""Signatures of POSTs to webhooks, and how their bodies are read."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest

from holdfast.errors import ConfigurationError, InvalidInput, SignatureInvalid
from holdfast.types import WebhookScheme
from holdfast.webhooks import check_secret_name, read_post, sign, verify_as

SECRET, BODY, NOW = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"amount": 7}', 1_700_000_000


def hexed(text: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


SIGNED: dict[WebhookScheme, dict[str, str]] = {
    "standard": {
        "Webhook-Id": "msg_1",
        "Webhook-Timestamp": str(NOW),
        "Webhook-Signature": f"v1,aaaa {sign(SECRET, 'msg_1', NOW, BODY)}",
    },
    "stripe": {
        "Stripe-Signature": f"t={NOW},v1={'0' * 64},v1={hexed(f'{NOW}.'.encode() + BODY)},v0=x"
    },
    "github": {"X-Hub-Signature-256": f"sha256={hexed(BODY)}"},
}


def test_the_signature_of_github_is_that_of_its_documentation() -> None:
    verify_as(
        "github",
        "It's a Secret to Everybody",
        {
            "X-Hub-Signature-256": "sha256="
            "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
        },
        b"Hello, World!",
    )


@pytest.mark.parametrize("scheme", SIGNED)
def test_a_right_signature_is_taken_and_wrong_ones_are_not(scheme: WebhookScheme) -> None:
    headers = SIGNED[scheme]
    verify_as(scheme, SECRET, headers, BODY, now=NOW + 299)
    lower = {name.lower(): value for name, value in headers.items()}
    verify_as(scheme, SECRET, lower, BODY, now=NOW)
    wrong = [
        (SECRET + "x", headers, BODY),
        (SECRET, headers, BODY + b" "),
        (SECRET, {}, BODY),
        *((SECRET, {**headers, name: ""}, BODY) for name in headers),
        *((SECRET, {**headers, name: "t=é,v1=é"}, BODY) for name in headers),
        *((SECRET, others, BODY) for other, others in SIGNED.items() if other != scheme),
    ]
    for secret, given, body in wrong:
        with pytest.raises(SignatureInvalid):
            verify_as(scheme, secret, given, body, now=NOW)


@pytest.mark.parametrize("digits", [16, 400, 5_000])
def test_a_time_of_many_digits_is_refused(digits: int) -> None:
    """They are more than a float, or than the interpreter reads."""
    standard = {**SIGNED["standard"], "webhook-timestamp": "9" * digits}
    schemes: dict[WebhookScheme, dict[str, str]] = {
        "standard": standard,
        "stripe": {"stripe-signature": f"t={'9' * digits},v1=00"},
    }
    for scheme, headers in schemes.items():
        with pytest.raises(SignatureInvalid, match="not signed"):
            verify_as(scheme, SECRET, headers, BODY, now=NOW)


@pytest.mark.parametrize("scheme", ["standard", "stripe"])
@pytest.mark.parametrize("late", [-301, 301])
def test_an_old_request_is_refused(scheme: WebhookScheme, late: int) -> None:
    with pytest.raises(SignatureInvalid, match="too old"):
        verify_as(scheme, SECRET, SIGNED[scheme], BODY, now=NOW + late)


@pytest.mark.parametrize("name", ["", "whsec_x", "1X", "A-B", "A" * 129, 7])
def test_a_secret_is_given_by_its_name(name: object) -> None:
    with pytest.raises(ConfigurationError, match="not the secret itself"):
        check_secret_name(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "content_type", "body", "read"),
    [
        ("json", "application/json", b'{"a": 1}', {"a": 1}),
        ("json", "", b"[1]", [1]),
        ("json", "application/json", b"", None),
        ("json", "APPLICATION/X-WWW-FORM-URLENCODED", b"a=%C3%A9&b=", {"a": "é", "b": ""}),
        ("json", "application/x-www-form-urlencoded", b"", {}),
        ("text", "", "é".encode(), "é"),
        ("bytes", "application/json", b"\xff", b"\xff"),
    ],
)
def test_a_body_is_read(kind: str, content_type: str, body: bytes, read: object) -> None:
    assert read_post(kind, content_type, body) == read  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "content_type", "body"),
    [
        ("json", "application/json", b"{"),
        ("json", "application/json", b"\xff"),
        ("json", "application/json", json.dumps("x").encode() + b"x"),
        ("json", "application/json", b"[" * 400 + b"]" * 400),
        ("json", "application/x-www-form-urlencoded", b"a"),
        ("json", "application/x-www-form-urlencoded", b"\xff=1"),
        ("text", "", b"\xff"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(kind: str, content_type: str, body: bytes) -> None:
    with pytest.raises(InvalidInput, match="type=bytes"):
        read_post(kind, content_type, body)  # type: ignore[arg-type]
