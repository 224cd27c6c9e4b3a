"""The types that inputs, results and forms may have, over a whole run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from pydantic import (
    BaseModel,
    Field,
    PrivateAttr,
    RootModel,
    SecretBytes,
    SecretStr,
    field_serializer,
)
from pydantic import Secret as Sealed
from typing_extensions import TypeAliasType, TypeVar

from holdfast import App, Context
from holdfast.codec import decoder, encode, encode_sorted, without_aliases
from holdfast.errors import ConfigurationError, InvalidInput, PayloadError
from holdfast.runtime.code.approvals import form_fields
from holdfast.testing import Environment


class Card(BaseModel):
    kind: Literal["card"] = "card"
    number: str
    folder: Path = Path("/cards")


class Transfer(BaseModel):
    kind: Literal["transfer"] = "transfer"
    iban: str


class Secret(BaseModel):
    name: str
    token: str = Field(default="", exclude=True)


class Login(BaseModel):
    name: str = "ann"
    password: SecretStr | SecretBytes = SecretStr("")


class Account(BaseModel):
    logins: list[Login]


class Plain(BaseModel):
    password: SecretStr

    @field_serializer("password")
    def _reveal(self, value: SecretStr) -> str:
        return value.get_secret_value()


@dataclass
class Moment:
    at: int


@dataclass
class Place:
    at: int


class Red(msgspec.Struct, tag=True):
    depth: int


class Blue(msgspec.Struct, tag=True):
    depth: int


class Open(BaseModel, extra="allow"):
    name: str = ""


class Holder(NamedTuple):
    login: Login


class Keyring(RootModel[list[SecretStr]]): ...


class Page(BaseModel):
    text: str
    draft: str = Field(default="", exclude=True)
    size: int = Field(default=0, serialization_alias="pages")


class Chapter(BaseModel):
    page: Page
    _lines: object = PrivateAttr(default_factory=object)


class Shape(BaseModel):
    name: str = ""


class Refund(BaseModel):
    reason: str = Field(title="Why?")
    amount: float = 1.5
    speed: Literal["fast", "slow"] = Field(alias="how", default="slow")


app = App("types")


@app.step
async def pay(by: Card | Transfer) -> Card | Transfer:
    return by


@app.workflow
async def settle(ctx: Context, by: list[Card | Transfer]) -> dict[str, Card | Transfer | None]:
    found: dict[str, Card | Transfer | None] = {"none": None}
    for each in by:
        found[each.kind] = await pay(each)
    return found


async def test_values_of_unions_of_models_keep_their_types() -> None:
    ways: list[Card | Transfer] = [Card(number="1"), Transfer(iban="DE")]
    async with Environment(app) as env:
        found = await env.run(settle, ways)
    assert found == {"none": None, "card": ways[0], "transfer": ways[1]}


@pytest.mark.parametrize(
    "value",
    [Path("/a/b"), Decimal("1.10"), Fraction(1, 3), IPv4Address("10.0.0.1"), ZoneInfo("UTC")],
    ids=lambda value: type(value).__name__,
)
def test_types_that_are_written_as_text_are_restored(value: object) -> None:
    kind = Path if isinstance(value, Path) else type(value)
    assert decoder(list[kind])(encode([value])) == [value]  # type: ignore[valid-type]


def test_a_value_that_would_be_lost_is_refused() -> None:
    @app.step
    async def hide(secret: Secret) -> Secret:
        return secret

    assert hide.encode_result(Secret(name="a"))
    with pytest.raises(InvalidInput, match="token of Secret"):
        hide.encode_result(Secret(name="a", token="t"))

    @app.step
    async def either() -> Secret | Shape: ...  # type: ignore[empty-body]

    with pytest.raises(InvalidInput, match="class of Shape"):
        either.encode_result(Shape(name="a"))


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (Login(password=SecretStr("x")), "password of Login"),
        ([Login(password=SecretBytes(b"x"))], "password of Login"),
        ({"it": Account(logins=[Login(password=SecretStr("x"))])}, "logins of Account"),
        (Open.model_validate({"pin": {"main": SecretStr("x")}}), "pin of Open"),
        (Keyring([SecretStr(""), SecretStr("x")]), "root of Keyring"),
        (Open.model_validate({"pin": {SecretStr("x"): 1}}), "pin of Open"),
        (Open.model_validate({"pin": Sealed[int](4711)}), "pin of Open"),
        (Open.model_validate({"it": Login(password=SecretStr("x"))}), "it of Open"),
        (Holder(Login(password=SecretStr("x"))), "password of Login"),
        ({UUID(int=1): Login(password=SecretStr("x"))}, "password of Login"),
        (["***", msgspec.Raw(b'"***"'), Login(password=SecretStr("x"))], "password of Login"),
    ],
)
def test_a_secret_of_which_only_a_mask_would_be_stored_is_refused(
    value: object, field: str
) -> None:
    for write in (encode, encode_sorted):
        with pytest.raises(PayloadError, match=f"{field} cannot be stored: .* field_serializer"):
            write(value)


def test_secrets_that_are_empty_or_have_a_serializer_are_stored() -> None:
    for value in (Login(name="**********"), Plain(password=SecretStr("x"))):
        assert decoder(type(value))(encode(value)) == value


def test_a_model_with_text_that_looks_like_a_mask_is_stored() -> None:
    """It need not come back equal: parts of it may be left out, or have other names."""
    text = encode(Chapter(page=Page(text="Title\n**********", draft="old", size=3)))
    assert text == r'{"page":{"text":"Title\n**********","pages":3}}'


def test_a_union_that_json_cannot_tell_apart_is_refused_with_the_way_out() -> None:
    for union in (Moment | Place, str | Decimal):
        with pytest.raises(ConfigurationError, match=r"apart\. .* with tag=True"):
            decoder(union)
    assert decoder(Red | Blue)(encode(Blue(3))) == Blue(3)


def _alias(stands_for: object, *parameters: object) -> Any:
    """Return a type alias, as `type Alias[…] = …` makes it from Python 3.12 on."""
    make: Any = TypeAliasType
    return make("Alias", stands_for, type_params=parameters)


A, B = TypeVar("A"), TypeVar("B")
Way = _alias(Annotated[Card | Transfer, Field(discriminator="kind")])
Rows = _alias(list[A], A)
Swapped = _alias(tuple[B, A], A, B)
Same = _alias(A, A)


@pytest.mark.parametrize(
    ("annotation", "meant"),
    [
        (Rows[Rows[int]], list[list[int]]),
        (Swapped[int, Same[str]], tuple[str, int]),
        (dict[str, Same[int] | None], dict[str, int | None]),
        (Annotated[Same[int], "label"], Annotated[int, "label"]),
        (tuple[Same[int], ...], tuple[int, ...]),
        (tuple[()], tuple[()]),
        (Literal["Same"], Literal["Same"]),
        (Rows, Rows),  # of anything
    ],
)
def test_a_type_alias_is_read_as_what_it_stands_for(annotation: object, meant: object) -> None:
    assert without_aliases(annotation) == meant


async def test_aliases_of_unions_of_models_keep_their_types() -> None:
    aliased = App("aliased")

    async def pay(by: object) -> object:
        return by

    async def settle(ctx: Context, by: list[object]) -> list[object]:
        return [await step(each) for each in by]

    pay.__annotations__ = {"by": Way, "return": Way}
    settle.__annotations__ = {"ctx": Context, "by": Rows[Way], "return": Rows[Way]}
    step, workflow = aliased.step(pay), aliased.workflow(settle)
    ways: list[object] = [Card(number="1"), Transfer(iban="DE")]
    async with Environment(aliased) as env:
        assert await env.run(workflow, ways) == ways


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there is no type statement")
def test_an_alias_that_contains_itself_is_refused_unless_it_has_models() -> None:
    made: dict[str, Any] = {"Card": Card}
    exec("type Deck = Card | list[Deck]; type Texts = str | list[Texts]", made)
    deck = [Card(number="1"), [Card(number="2")]]
    assert decoder(made["Deck"])(encode(deck)) == deck
    with pytest.raises(ConfigurationError, match="contains itself: use Any"):
        decoder(made["Texts"])


def test_a_model_is_a_form() -> None:
    reason, amount, speed = form_fields(Refund)
    assert (reason.name, reason.type, reason.required, reason.label) == (
        "reason",
        "text",
        True,
        "Why?",
    )
    assert (amount.type, amount.default) == ("number", 1.5)
    assert (speed.name, speed.choices, speed.default) == ("how", ("fast", "slow"), "slow")


async def no_context(order: str) -> None: ...


async def swapped(order: dict[str, int], ctx: Context) -> None: ...


@pytest.mark.parametrize("fn", [no_context, swapped])
def test_a_workflow_whose_first_parameter_is_data_is_refused(fn: object) -> None:
    with pytest.raises(ConfigurationError, match="takes the context"):
        App("refused").workflow(fn)  # type: ignore[call-overload]
