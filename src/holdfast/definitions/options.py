"""Options of definitions, with errors that name the definition and the option; and of starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final, TypedDict, TypeVar, get_args

from holdfast.details import OnCancel
from holdfast.errors import ConfigurationError
from holdfast.types import AttributeValue
from holdfast.values.durations import Duration, seconds
from holdfast.values.suggestions import similar_name

T = TypeVar("T")

# What an option is called elsewhere, and what here: the first that is among the known ones.
_OTHER_WORDS: Final = (
    ("retry", "attempts and base_delay"),
    ("retries", "attempts"),
    ("max_attempts", "attempts"),
    ("max_attempts", "retry"),
    ("attempts", "retry"),
    ("delay", "start_delay"),
    ("timeout", "start_to_close"),
)
_ON_CANCEL: Final[tuple[str, ...]] = get_args(OnCancel)


@contextmanager
def option(of: str, name: str) -> Generator[None]:
    """Name the definition and the option in each ConfigurationError of the block."""
    try:
        yield
    except ConfigurationError as error:
        raise type(error)(f"{of}: {name}: {error}") from None


def check_options(
    given: Iterable[str], known: Collection[str], of: str, elsewhere: Iterable[str] = ()
) -> None:
    """Raise TypeError for an option that does not exist, with the one that was meant.

    `of` names what has the known options. `elsewhere` names what else has this option: the error
    says so if no known one has a similar name.
    """
    for name in given:
        if name in known:
            continue
        words = (ours for theirs, ours in _OTHER_WORDS if theirs == name)
        ours = next((each for each in words if each.partition(" ")[0] in known), None)
        meant, others = ours or similar_name(name, known), ", ".join(elsewhere)
        hint = f": did you mean {meant}?" if meant else f": it is for {others}." if others else "."
        raise TypeError(
            f"{of}: unexpected option {name}{hint} There are {', '.join(sorted(known))}"
        )


def names_options(**more: type) -> Callable[[type[T]], type[T]]:
    """Return a decorator: methods of the class refuse unexpected options as `check_options` does.

    `more` has the TypedDict of the options that methods take as `**NAME`, by that name. A method
    with another `**NAME` is left as it is, and checks its options itself.
    """

    def decorate(cls: type[T]) -> type[T]:
        known = {
            name: found
            for name in dir(cls)
            if inspect.isfunction(method := getattr(cls, name))
            and (name == "__init__" or not name.startswith("_"))
            and (found := _options_of(method, more))
        }
        for name, options in known.items():
            owner = next(each for each in cls.__mro__ if name in vars(each))
            setattr(owner, name, _checked(getattr(cls, name), name, options, known))
        return cls

    return decorate


def _options_of(method: Callable[..., Any], more: Mapping[str, type]) -> frozenset[str]:
    """Return what may be given to a method by name; nothing if it checks that itself."""
    names = set[str]()
    for each in inspect.signature(method).parameters.values():
        if each.kind is each.VAR_KEYWORD:
            if each.name not in more:
                return frozenset()
            names |= more[each.name].__annotations__.keys()
        elif each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD):
            names.add(each.name)
    return frozenset(names - {"self"})


def _checked(
    method: Callable[..., Any],
    name: str,
    known: frozenset[str],
    all_known: Mapping[str, frozenset[str]],
) -> Callable[..., Any]:
    @wraps(method)
    def checked(self: object, *args: Any, **options: Any) -> Any:
        if unknown := options.keys() - known:
            of, first = "App" if name == "__init__" else f"app.{name}", min(unknown)
            others = [f"app.{each}" for each, has in all_known.items() if first in has]
            check_options((first,), known, of, others)
        return method(self, *args, **options)

    return checked


def option_seconds(length: Duration, of: str, name: str) -> float:
    """Return a duration that an option is, in seconds. Raises ConfigurationError."""
    with option(of, name):
        return seconds(length)


def limit_seconds(limit: Duration | None, of: str, name: str) -> float | None:
    """Return a time limit in seconds. Raises ConfigurationError for a limit of 0."""
    if limit is None:
        return None
    with option(of, name):
        length = seconds(limit)
        if length == 0:
            raise ConfigurationError("a limit of 0 s lets nothing run: leave it out for no limit")
    return length


def check_on_cancel(policy: OnCancel) -> OnCancel:
    """Return what becomes of a call whose caller is cancelled. Raises ConfigurationError."""
    if policy not in _ON_CANCEL:
        raise ConfigurationError(f"one of {', '.join(_ON_CANCEL)}, not {policy!r}")
    return policy


class AnyRunOptions(TypedDict, total=False):
    """Options of a run that a client or another run starts.

    Options that are left out are those of the workflow.

    Durations are seconds, a text such as `"5m"`, or a `timedelta`.
    """

    priority: int | None
    """0 (most urgent) to 4; 2 unless the workflow says otherwise."""
    queue: str | None
    """The queue whose workers may run it."""
    timeout: Duration | None
    """The time after its start at which the run is ended, whatever it does."""
    tags: Iterable[str]
    """Labels to list runs by."""
    attributes: Mapping[str, AttributeValue] | None
    """Names with texts, numbers or booleans to list and count runs by. No codec encodes them."""
    headers: Mapping[str, str] | None
    """Names and values that travel with the run and its children, such as a trace context."""
