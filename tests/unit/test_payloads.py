"""Payload codecs on their own: envelopes, compression, encryption, keys (trap 20)."""

from __future__ import annotations

import inspect
import json
import zlib
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.codec import check_open, decode_error, decoder, encode, encode_error, seal_label
from holdfast.errors import ConfigurationError, PayloadError, PayloadLocked
from holdfast.payloads import READABLE, AesGcm, Payloads, Zlib
from holdfast.payloads.store.store import PayloadStore
from holdfast.store.port import Store
from holdfast.types import ErrorInfo

KEY, OTHER = AesGcm.new_key(), AesGcm.new_key()
AES = Payloads(AesGcm({"k1": KEY}))
BOTH = Payloads([Zlib(), AesGcm({"k1": KEY})])

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner),
)


@given(plain)
@settings(max_examples=50)
def test_what_is_sealed_is_opened_to_the_same_text(value: object) -> None:
    text = encode(value)
    for payloads in (AES, BOTH, Payloads(Zlib(min_bytes=0))):
        sealed = payloads.seal(text)
        assert json.loads(sealed) is not None or text == "null"
        assert payloads.open(sealed) == text


def test_an_envelope_says_how_it_was_encoded() -> None:
    sealed = json.loads(BOTH.seal(encode("a" * 5000)))
    assert sealed["holdfast:codec"] == "zlib/1 aes-gcm/1:k1"
    assert json.loads(BOTH.seal('"short"'))["holdfast:codec"] == "aes-gcm/1:k1"


def test_small_payloads_are_not_compressed() -> None:
    assert Payloads(Zlib()).seal('"short"') == '"short"'
    assert len(Payloads(Zlib()).seal(encode("a" * 5000))) < 200


def test_envelopes_inside_of_other_values_are_opened() -> None:
    """SQL puts the outputs of a flow's steps together; texts around them stay as they are."""
    one, two = AES.seal('{"a": 1.0}'), AES.seal("[1e300]")
    text = f'{{"run" : {one}, "both": [{two},{{"n":1e300}}]}}'
    assert AES.open(text) == '{"run":{"a": 1.0},"both":[[1e300],{"n":1e300}]}'
    assert AES.open('{"n" : 1e300}') == '{"n" : 1e300}'


def stays_closed(payloads: Payloads, sealed: str) -> bool:
    """Return True if an envelope is as it was, but for the reason why it is not opened."""
    opened = json.loads(payloads.open(sealed))
    opened.pop("holdfast:reason", None)
    return bool(opened == json.loads(sealed))


def test_keys_are_changed_one_after_the_other() -> None:
    old, new = Payloads(AesGcm({"k1": KEY})), Payloads(AesGcm({"k2": OTHER, "k1": KEY}))
    assert new.open(old.seal('"x"')) == '"x"'
    assert seal_label(new.seal('"x"')) == "encrypted with key k2"
    sealed = new.seal('"x"')
    assert stays_closed(old, sealed)
    with pytest.raises(PayloadLocked, match="a value is encrypted with key k2"):
        decoder(str)(sealed)


@pytest.mark.parametrize(
    "payloads", [Payloads(AesGcm({"k1": OTHER})), Payloads(AesGcm({"k9": KEY})), Payloads(Zlib())]
)
def test_the_wrong_key_opens_nothing(payloads: Payloads) -> None:
    sealed = AES.seal('"x"')
    assert stays_closed(payloads, sealed)
    with pytest.raises(PayloadLocked):
        check_open([payloads.open(sealed)])


def test_data_that_was_changed_is_not_opened() -> None:
    envelope = json.loads(AES.seal('"x"'))
    envelope["data"] = envelope["data"][:-6] + "AAAAA="
    changed = json.dumps(envelope, separators=(",", ":"))
    assert stays_closed(AES, changed)


def test_a_bomb_is_not_expanded() -> None:
    bomb = zlib.compress(b" " * (64 << 20))
    with pytest.raises(PayloadError, match="cut off, or expands to"):
        Zlib().decode(bomb, None)


def test_a_reader_without_the_key_is_told_which_one_it_needs() -> None:
    assert READABLE.open(AES.seal('"x"')) == '"(encrypted with key k1)"'
    assert READABLE.open(Payloads(Zlib(min_bytes=0)).seal(encode("a" * 99))) == encode("a" * 99)
    assert READABLE.seal('"x"') == '"x"'


def test_of_an_error_only_the_class_stays_readable() -> None:
    info = ErrorInfo(
        "shop.Declined", "card 4711", "at line 3", ("builtins.ValueError",), data={"card": 4711}
    )
    text = encode_error(info)
    sealed = AES.seal_error(text)
    shown = json.loads(sealed)
    assert (shown["kind"], shown["bases"]) == ("shop.Declined", ["builtins.ValueError"])
    assert shown["message"] == "(encrypted with key k1)"
    assert "4711" not in sealed
    assert "line 3" not in sealed
    assert AES.open(sealed) == text
    assert json.loads(AES.open(f'{{"cause": {sealed}}}'))["cause"]["message"] == "card 4711"


def test_a_reader_without_the_key_can_decode_an_error() -> None:
    """Fault: `data` was the text that it is encrypted; a list of runs of others failed by it."""
    codecs = (AES, Payloads([Zlib(min_bytes=0), AesGcm({"k1": KEY})]))
    datas: tuple[dict[str, object] | None, ...] = ({"card": 4711}, None)
    for payloads, data in product(codecs, datas):
        info = ErrorInfo("shop.Declined", "card 4711", "at", ("builtins.ValueError",), data=data)
        sealed = payloads.seal_error(encode_error(info))
        hidden = ErrorInfo("shop.Declined", "(encrypted with key k1)", bases=info.bases)
        assert decode_error(READABLE.open(sealed)) == hidden
        whole = f'{{"kind":"flow.Failed","message":"a step failed","cause":{sealed}}}'
        assert decode_error(READABLE.open(whole)).cause == hidden
        assert decode_error(payloads.open(sealed)) == info
    steps = [("kind", "a"), ("message", "b"), ("data", "c")]  # results of steps of these names
    sealed_steps = [f'"{name}":{AES.seal(encode(each))}' for name, each in steps]
    outputs = "{" + ",".join(sealed_steps) + "}"
    assert set(json.loads(READABLE.open(outputs)).values()) == {"(encrypted with key k1)"}


def test_the_field_of_envelopes_is_reserved() -> None:
    with pytest.raises(PayloadError, match="holdfast:codec is reserved"):
        AES.seal('{"holdfast:codec":"none","data":""}')
    AES.seal(encode('a text with "holdfast:codec": in it'))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AesGcm({}), "needs a key"),
        (lambda: AesGcm({"k 1": KEY}), "cannot be the id of a key"),
        (lambda: AesGcm({"k1": b"short"}), "key k1 must be 16, 24 or 32 bytes"),
        (lambda: AesGcm({"k1": "text"}), "key k1 must be 16, 24 or 32 bytes"),
        (lambda: Zlib(level=12), "level must be 1 to 9"),
        (lambda: Payloads([]), "codecs with different names"),
        (lambda: Payloads([Zlib(), Zlib()]), "codecs with different names"),
        (lambda: Payloads(object()), "is not a payload codec"),
    ],
)
def test_codecs_that_cannot_work_are_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()  # type: ignore[operator]


def test_a_store_with_payloads_takes_what_the_port_does() -> None:
    """It passes methods on by their parameters: one that it lacks would fail every caller."""
    for name, method in inspect.getmembers(PayloadStore, inspect.isfunction):
        known = getattr(Store, name, None)
        if known is None or name.startswith("_"):
            continue
        taken = inspect.signature(method).parameters
        if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values()):
            assert list(taken) == list(inspect.signature(known).parameters), name
