"""Webhooks: URLs that a run gives to others, each of which takes one POST."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from typing import Any, Final, Generic, TypeVar, cast, overload

from holdfast.codec import Decode, decoder
from holdfast.details import WebhookOpened
from holdfast.errors import InvalidInput, WebhookClosed
from holdfast.events import read_webhook_received
from holdfast.runtime.code.commands import Command, Commands
from holdfast.runtime.code.history import WEBHOOK
from holdfast.runtime.code.run import ContextPart, Run
from holdfast.runtime.code.values import Values
from holdfast.runtime.log.unreadable import UNREADABLE, unreadable
from holdfast.types import JSON, WebhookBody, WebhookScheme
from holdfast.values.durations import Duration, seconds
from holdfast.values.names import check_webhook_name
from holdfast.webhooks import check_scheme, check_secret_name, digest_of, hook_url, new_token

T = TypeVar("T")

# So a replay in this process draws the same token before the first one is recorded.
_CHANCE: Final = secrets.token_bytes(32)


class Webhook(Generic[T]):
    """A URL that takes one POST for the run, until it is closed or the run ends."""

    __slots__ = ("_command", "_decode", "_run", "url")

    def __init__(self, run: Run, command: Command, url: str, decode: Decode) -> None:
        self._run, self._command, self._decode = run, command, decode
        self.url: Final = url

    def __repr__(self) -> str:
        return f"<Webhook {self._command.key}>"  # without the URL, which is a key

    async def received(self, *, timeout: Duration | None = None) -> T:
        """Wait for the POST, and return its body. Asked again, it returns the same.

        Raises TimeoutError when nothing came in time: the URL stays open, so the code may wait
        again. Raises InvalidInput for a body that does not fit the type, WebhookClosed if the code
        has closed the URL: nothing could come.
        """
        commands = self._run.ledger(Commands)
        if commands.is_withdrawn(self._command):
            raise WebhookClosed(self._run.info.run_id, self._command.key)
        async with asyncio.timeout(None if timeout is None else seconds(timeout)):
            event = await commands.end_of(self._command, withdraw=False)
        try:
            body = read_webhook_received(event.details or "").body
        except UNREADABLE as error:
            raise self._run.history.stop_at(unreadable(event, error)) from None
        try:
            return cast("T", self._decode(body))
        except InvalidInput as error:
            named = InvalidInput(f"webhook {self._command.key}: {error}")
            raise self._run.ledger(Values).misfit(named, event.key) from None

    def close(self) -> None:
        """Take no POST any more: one that comes is answered with 410. Idempotent.

        Nothing is done while a task of the run waits for the POST, or once it has come.
        """
        self._run.ledger(Commands).withdraw(self._command)


class WebhookPart(ContextPart):
    """The part of a context that opens URLs for others."""

    __slots__ = ()

    @overload
    def webhook(
        self, name: str, *, secret: str | None = None, scheme: WebhookScheme = "standard"
    ) -> Webhook[JSON]: ...
    @overload
    def webhook(
        self,
        name: str,
        *,
        type: type[T],
        secret: str | None = None,
        scheme: WebhookScheme = "standard",
    ) -> Webhook[T]: ...
    def webhook(
        self,
        name: str,
        *,
        type: type[Any] | None = None,
        secret: str | None = None,
        scheme: WebhookScheme = "standard",
    ) -> Webhook[Any]:
        """Open a URL that takes one POST, and return it: for a payment service, or a callback.

        ```python
        hook = ctx.webhook("paid", type=Payment, secret="STRIPE_SECRET", scheme="stripe")
        await create_payment(order, hook.url)
        payment = await hook.received(timeout="7d")
        ```

        The URL is the same on each replay, and is a key: a program that has it can post to it.
        Steps that the code calls after this begin when the URL takes POSTs. A second POST changes
        nothing, and is answered with 200. It is closed by `close` and by the run's end.

        The body is JSON or a form, as `type`; with `type=str` it is any text, with `type=bytes`
        anything. `secret` is the name of the environment variable of the server that has the key
        of the signature, which `scheme` describes: `standard` (Standard Webhooks), `stripe` or
        `github`. Each call with the same name opens another URL.

        Raises InvalidName for a name outside `[a-zA-Z0-9._-]{1,128}`, ConfigurationError for a
        secret that is not the name of a variable, or another scheme.
        """
        run, key = self._run, self._run.loop.scope().key(check_webhook_name(name))
        decode = decoder(object if type is None else type)  # a bad type opens nothing
        body: WebhookBody = "bytes" if type is bytes else "text" if type is str else "json"
        checked = None if secret is None else check_secret_name(secret)
        recorded = run.history.recorded.get(key)
        url = "" if recorded is None else recorded.url
        if not url:
            drawn = hmac.digest(_CHANCE, f"{run.info.run_id}/{key}".encode(), "sha256")
            url = hook_url(new_token(drawn))
        opened = WebhookOpened(name, body, checked, check_scheme(scheme), digest_of(url) or "", url)
        command = Command(WEBHOOK, key, name, opened.fingerprint)
        run.ledger(Commands).give(command, lambda: opened)
        return Webhook(run, command, url, decode)
