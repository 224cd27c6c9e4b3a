"""From JSON text to an envelope and back, by a chain of codecs."""

from __future__ import annotations

import base64
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeAlias

import msgspec

from holdfast.codec import (
    CODE_ERRORS,
    ENVELOPE,
    MAX_PAYLOAD,
    is_sealed,
    seal_label,
    summarize,
    with_reason,
)
from holdfast.errors import ConfigurationError, PayloadError
from holdfast.payloads.large import LargePayloads

_name = re.compile(r"[a-z0-9._/-]{1,64}")
_read_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_write: Final = msgspec.json.Encoder().encode


class PayloadCodec(Protocol):
    """One way to encode payloads: to compress, encrypt or sign them.

    It is called on the event loop, for each payload: it must not wait for a network.
    """

    @property
    def name(self) -> str:
        """What is stored with each payload: lower-case letters, digits and `._/-`."""
        ...

    @property
    def key_id(self) -> str | None:
        """The id of the key that `encode` uses, without spaces and colons; None without a key."""
        ...

    def encode(self, data: bytes) -> bytes | None:
        """Return the encoded data; None to leave it as it is."""
        ...

    def decode(self, data: bytes, key_id: str | None) -> bytes:
        """Return what was encoded. Raises PayloadError if it cannot, for want of the key, say."""
        ...


Codecs: TypeAlias = "PayloadCodec | Sequence[PayloadCodec]"


class _Envelope(msgspec.Struct):
    stages: str = msgspec.field(name="holdfast:codec")
    data: str


class _Error(msgspec.Struct):
    message: str
    kind: str


_read_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_read_error: Final = msgspec.json.Decoder(_Error).decode
_read_text: Final = msgspec.json.Decoder(str).decode


class Payloads:
    """Encodes payloads with codecs, in their order, and decodes them in the opposite order.

    What it `hides`, the database cannot look into. What is to be stored takes `max_bytes` at most.
    If `seals` is False, it only opens, and what is given is stored as it is.
    """

    seals = True

    def __init__(
        self,
        codecs: Codecs | None = None,
        *,
        max_bytes: int | None = None,
        large: LargePayloads | None = None,
    ) -> None:
        """`max_bytes` is by default 16 MiB, as much as the database takes.

        Those that are larger than `large` says are objects outside of the database.

        Raises ConfigurationError for what is not a codec, for two of one name, and for a limit
        that cannot be.
        """
        self.max_bytes = MAX_PAYLOAD if max_bytes is None else _checked_limit(max_bytes)
        given = codecs if isinstance(codecs, Sequence) else () if codecs is None else (codecs,)
        self.codecs: tuple[PayloadCodec, ...] = tuple(given)
        for each in self.codecs:
            if not callable(getattr(each, "encode", None)) or not _name.fullmatch(
                str(getattr(each, "name", ""))
            ):
                raise ConfigurationError(
                    f"{each!r} is not a payload codec: it needs a name, a key_id, encode and decode"
                )
        self._by_name: Mapping[str, PayloadCodec] = {each.name: each for each in self.codecs}
        if len(self._by_name) < len(self.codecs) or (codecs is not None and not self.codecs):
            raise ConfigurationError("payload_codec takes codecs with different names")
        self.large = large
        self.hides = bool(self.codecs) or large is not None

    def __repr__(self) -> str:
        return f"<Payloads {' '.join(self._by_name)}>"

    def needs_seal(self, text: str) -> bool:
        """Return False if JSON text is certainly stored as it is, with all values in it."""
        if self.codecs:
            return True
        return (
            size_of(text) > self.max_bytes
            or self.may_be_outside(text)
            or (self.large is not None and is_sealed(text))
        )

    def may_be_outside(self, text: str) -> bool:
        """Return True if JSON text may be stored as an object: an envelope adds a third."""
        return self.large is not None and 2 * size_of(text) > self.large.above

    def check_keys(self, of: str, *keys: str | None) -> None:
        """Raise ConfigurationError if the database would look for a key in encoded inputs."""
        paths = [key for key in keys if key]
        if paths and self.hides:
            raise ConfigurationError(
                f"{of}: the key {paths[0]} is a path into the input, and the database cannot look "
                f"into inputs that {self.hiding}. Leave the key out, or define it in an app "
                "without that option"
            )

    @property
    def hiding(self) -> str:
        """Why the database cannot look into payloads, in words."""
        if self.codecs:
            return "are encoded by a payload_codec"
        return "may be objects outside of it, by large_payloads"

    def seal(self, text: str, what: str = "the value") -> str:
        """Return the envelope of JSON text; the text itself if no codec changes it.

        Raises PayloadError for text with a field that only envelopes have, and if more than
        `max_bytes` would be stored; it names the value as `what`.
        """
        sealed = self._seal(text)
        if (size := size_of(sealed)) > self.max_bytes:
            encoded = " encoded" if sealed is not text else ""
            raise PayloadError(
                f"{what} takes {size:,} bytes{encoded}, more than the limit of "
                f"{self.max_bytes:,} (max_payload_bytes): store it elsewhere and pass a reference"
            )
        return sealed

    def _seal(self, text: str) -> str:
        if not self.hides:
            return text
        if is_sealed(text):
            raise PayloadError("the field holdfast:codec is reserved for encoded payloads")
        if not self.codecs:
            return text
        data, stages = text.encode(), list[str]()
        for codec in self.codecs:
            with _named(codec):
                encoded = codec.encode(data)
                data = data if encoded is None else _bytes(encoded)
            if encoded is not None:
                stages.append(
                    codec.name if codec.key_id is None else f"{codec.name}:{codec.key_id}"
                )
        if not stages:
            return text
        return f'{ENVELOPE}"{" ".join(stages)}","data":"{base64.b64encode(data).decode()}"}}'

    def seal_details(self, text: str) -> str:
        """Return the envelope of what a heartbeat says, of any size: a lease must not end by it."""
        return text if text == "null" else self._seal(text)

    def seal_error(self, text: str) -> str:
        """Return an encoded ErrorInfo whose message, traceback, causes and data are sealed.

        Its class stays readable: the database and callers tell errors apart by it. It may be larger
        than other payloads: else the failure of a value that is too large could not be stored.
        """
        sealed = self._seal(text)
        if sealed == text:
            return text
        known = _read_object(text)
        shown = {name: known[name] for name in ("kind", "bases") if name in known}
        return _write(
            {**shown, "message": f"({self._label})", "data": msgspec.Raw(sealed.encode())}
        ).decode()

    @property
    def _label(self) -> str:
        keys = [each.key_id for each in self.codecs if each.key_id is not None]
        return f"encrypted with key {', '.join(keys)}" if keys else "encoded"

    def seal_words(self, words: str) -> str:
        """Return the envelope of words for people, or the words if no codec changes them.

        If they cannot be encoded, return words that say so: a run must not lack a reason.
        """
        text = _write(words).decode()
        try:
            sealed = self._seal(text)
        except PayloadError:
            return "the reason cannot be encoded: it is in the log of the worker"
        return words if sealed is text else sealed

    def open_words(self, words: str) -> str:
        """Return words for people, opened. Without their key, say which key they need."""
        if not words.startswith(ENVELOPE):
            return words
        text = self.open(words)
        return f"({seal_label(text)})" if is_sealed(text) else _read_text(text)

    def open(self, text: str) -> str:
        """Return JSON text with all envelopes in it opened.

        One that cannot be opened stays: its readers raise PayloadLocked.
        """
        return self._open(text.encode()).decode() if is_sealed(text) else text

    def _open(self, data: bytes) -> bytes:
        if not is_sealed(data):
            return data
        if data.lstrip().startswith(b"["):
            return _write([msgspec.Raw(self._open(bytes(each))) for each in _read_array(data)])
        fields = _read_object(data)
        if set(fields) >= {"holdfast:codec", "data"}:
            return self._unseal(data)
        if {"kind", "message", "data"} <= set(fields) and is_sealed(bytes(fields["data"])):
            whole = self._open(bytes(fields["data"]))
            if is_sealed(whole):
                return data  # an error that cannot be opened
            if _is_error(whole, bytes(fields["kind"])):
                return whole
            if whole.startswith(b'"') and bytes(fields["kind"]).startswith(b'"'):
                fields["data"] = msgspec.Raw(b"null")  # its message says that it is encrypted
        opened = {name: msgspec.Raw(self._open(bytes(raw))) for name, raw in fields.items()}
        if "message" in fields and "cause" in fields:
            opened["message"] = _retold(fields["message"], fields["cause"], opened["cause"])
        return _write(opened)

    def _unseal(self, data: bytes) -> bytes:
        try:
            envelope = _read_envelope(data)
            text = base64.b64decode(envelope.data, validate=True)
            for stage in reversed(envelope.stages.split()):
                name, _, key_id = stage.partition(":")
                codec = self._by_name[name]
                with _named(codec):
                    text = _bytes(codec.decode(text, key_id or None))
            msgspec.json.decode(text)
        except PayloadError as error:
            return with_reason(data, str(error))
        except (KeyError, ValueError, msgspec.MsgspecError):
            return data
        return text


def _bytes(made: bytes) -> bytes:
    """Return what a codec has made, also of a view or an array. Raises TypeError for all else."""
    return bytes(memoryview(made))


@contextmanager
def _named(codec: PayloadCodec) -> Generator[None]:
    """Raise as PayloadError what a codec raises: one value must not hold up those beside it."""
    try:
        yield
    except PayloadError:
        raise
    except CODE_ERRORS as error:
        raise PayloadError(f"codec {codec.name} raised {summarize(error)}") from error


def _is_error(text: bytes, kind: bytes) -> bool:
    """Return True if text is an error of a kind, not an output of a step that is named data."""
    try:
        return _read_error(text).kind == _read_text(kind)
    except msgspec.MsgspecError:
        return False


def _retold(message: msgspec.Raw, sealed: msgspec.Raw, opened: msgspec.Raw) -> msgspec.Raw:
    """Return a message that ends with that of a cause, once the cause is opened.

    So the database says of a step of a flow why it failed, and it has only what can be read.
    """
    try:
        text = _read_text(message), _read_error(sealed).message, _read_error(opened).message
    except msgspec.MsgspecError:
        return message  # not an error
    whole, hidden, said = text
    if hidden == said or not whole.endswith(hidden):
        return message
    return msgspec.Raw(_write(whole.removesuffix(hidden) + said))


def payloads_of(
    codecs: Codecs | None, max_bytes: int | None = None, large: LargePayloads | None = None
) -> Payloads | None:
    """Return what encodes, limits and moves payloads; None if nothing does.

    Raises what `Payloads` raises.
    """
    if codecs is None and max_bytes is None and large is None:
        return None
    return Payloads(codecs, max_bytes=max_bytes, large=large)


def size_of(text: str) -> int:
    """Return how many bytes text takes."""
    return len(text) if text.isascii() else len(text.encode())


def _checked_limit(max_bytes: int) -> int:
    known = isinstance(max_bytes, int)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not known or isinstance(max_bytes, bool) or not 1 <= max_bytes <= MAX_PAYLOAD:
        raise ConfigurationError(
            f"max_payload_bytes is a number of bytes from 1 to {MAX_PAYLOAD:,}, which is what the "
            f"database takes, not {max_bytes!r}"
        )
    return max_bytes
