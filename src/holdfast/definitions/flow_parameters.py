"""The parameters of a flow's steps: what each is given, checked when the step is defined."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

import msgspec

from holdfast.codec import encode_sorted
from holdfast.definitions.flow_rules import read_failures, split_payload, without_error
from holdfast.definitions.flow_types import admits_none, fits, fits_elements, type_name
from holdfast.definitions.signatures import Arguments, Declared, evaluate, read_signature
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.types import TriggerRule
from holdfast.values.suggestions import similar_name

T_co = TypeVar("T_co", covariant=True)

RUN: Final = "run"  # the name of the run's input


class Source(Generic[T_co]):
    """A value for parameters of steps: the input of the run, or the output of another step.

    As the default of a parameter, `output` says which value the parameter gets. Type checkers see
    the type of the value; at run time it is only a mark.
    """

    may_be_skipped: bool = False
    """True if steps that depend on it may run without it: a condition or a failure may skip it."""

    may_cascade: bool = False
    """True if it may be skipped with the steps after it, but for those with a trigger rule."""

    trigger_rule: TriggerRule = "none_failed"
    """When it runs."""

    @property
    def slug(self) -> str:
        """The name of parameters that get this value."""
        raise NotImplementedError

    @property
    def output(self) -> T_co:
        """The default of a parameter that takes this value."""
        return cast("T_co", OutputMark(self))

    @property
    def described(self) -> str:
        """A description of the value, for messages."""
        return f"the output of step {self.slug}"

    @property
    def annotation(self) -> object:
        """The declared type of the value; Any if none is declared."""
        raise NotImplementedError


class OutputMark:
    """The default of a parameter that takes the value of a source."""

    def __init__(self, source: Source[Any]) -> None:
        self.source = source

    def __repr__(self) -> str:
        return f"<{self.source.described}>"


class RunInput(Source[T_co]):
    """The input of a flow's runs, by which steps depend on it."""

    def __init__(self, flow: str, annotation: object) -> None:
        self._flow, self._annotation = flow, annotation

    def __repr__(self) -> str:
        return f"<input of flow {self._flow}>"

    @property
    def described(self) -> str:
        """A description of the value, for messages."""
        return "the run's input"

    @property
    def slug(self) -> str:
        """The name of parameters that get this value: `run`."""
        return RUN

    @property
    def annotation(self) -> object:
        """The declared type of the input; Any if none is declared."""
        return self._annotation


class Misfit(NamedTuple):
    """A value that does not fit a parameter: where it is from, and its JSON text.

    An element of a list is the text of a list of one.
    """

    source: Source[Any]
    text: bytes

    @property
    def fits_source(self) -> bool:
        """True if it is of the type that its source declares now."""
        return Declared.of_type(self.source.annotation, self.source.described).fits(self.text)


def _slug_of(parameter: inspect.Parameter) -> str:
    """Return the name of what a parameter is given: RUN, or that of a dependency."""
    default: object = parameter.default
    return default.source.slug if isinstance(default, OutputMark) else parameter.name


class _Parameter(NamedTuple):
    name: str
    source: Source[Any]
    declared: Declared
    absent: object  # what it is given if the source was skipped
    is_positional: bool


class SingleParameters:
    """The parameters of a single step, whose payload is `{"run": …, dependency: output, …}`.

    A dependency that was skipped is absent: then its parameter gets its default, or None.
    """

    def __init__(
        self,
        fn: Callable[..., object],
        step: str,
        sources: Mapping[str, Source[Any]],
        rule: TriggerRule = "none_failed",
    ) -> None:
        """Read `fn`'s parameters; `step` names it in messages, `sources` are the values that exist.

        Raises ConfigurationError for a parameter without a source, or of a type that does not fit.
        """
        self._signature = read_signature(fn)
        self._step, self._rule = step, rule
        parameters = self._signature.parameters.values()
        self._is_of_one = len({_slug_of(each) for each in parameters} - {RUN}) == 1
        self._parameters = [self._read(fn, parameter, sources) for parameter in parameters]
        slugs = dict.fromkeys(each.source.slug for each in self._parameters)
        self.wants_run = RUN in slugs
        self.deps = tuple(slug for slug in slugs if slug != RUN)

    def decode(self, text: str) -> Arguments:
        """Decode a task's payload into arguments. Raises InvalidInput if one does not fit."""
        payload = _split(text, self._step)
        failed = {} if self._rule == "none_failed" else read_failures(payload)
        args: list[object] = []
        kwargs: dict[str, object] = {}
        for parameter in self._parameters:
            slug = parameter.source.slug
            raw = payload.get(slug)
            value = failed.get(slug, parameter.absent)
            if raw is not None:
                value = parameter.declared.decode(raw)
            if parameter.is_positional:
                args.append(value)
            else:
                kwargs[parameter.name] = value
        return tuple(args), kwargs

    def misfits(self, text: str) -> list[Misfit]:
        """Return the values of a task's payload that do not fit. Raises InvalidInput."""
        payload = _split(text, self._step)
        given = [(each, payload.get(each.source.slug)) for each in self._parameters]
        return [
            Misfit(each.source, bytes(raw))
            for each, raw in given
            if raw is not None and not each.declared.fits(raw)
        ]

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """Encode arguments as the payload of a task. Raises TypeError and PayloadError."""
        given = _bind(self._signature, self._step, args, kwargs)
        return encode_sorted(
            {each.source.slug: given[each.name] for each in self._parameters if each.name in given}
        )

    def _read(
        self,
        fn: Callable[..., object],
        parameter: inspect.Parameter,
        sources: Mapping[str, Source[Any]],
    ) -> _Parameter:
        name, default = parameter.name, parameter.default
        _refuse_variadic(parameter, self._step)
        source = self._source(parameter, sources)
        declared = self._declared(fn, name, source)
        wanted = annotation_of(declared)
        if not fits(source.annotation, wanted):
            raise ConfigurationError(
                f"{self._step}: parameter {name} is declared as {type_name(wanted)}, but "
                f"{source.described} is {type_name(source.annotation)}"
            )
        has_default = default is not parameter.empty and not isinstance(default, OutputMark)
        may_be_none = source.may_be_skipped or (
            source.slug != RUN
            and self._rule != "none_failed"
            and (source.may_cascade or self._rule == "always")
        )
        if may_be_none and not has_default and not admits_none(wanted):
            raise ConfigurationError(
                f"{self._step}: parameter {name} is declared as {type_name(wanted)}, but step "
                f"{source.slug} may be skipped, and gives None then: declare "
                f"{type_name(wanted)} | None, or write a default"
            )
        is_positional = parameter.kind is parameter.POSITIONAL_ONLY
        return _Parameter(name, source, declared, default if has_default else None, is_positional)

    def _declared(self, fn: Callable[..., object], name: str, source: Source[Any]) -> Declared:
        """Return how a parameter is declared, without the error that it gets if its step failed."""
        place = f"parameter {name} of {self._step}"
        if self._rule == "none_failed" or source.slug == RUN:
            return Declared(fn, name, place)
        try:
            annotation = evaluate(fn, name)
        except NameError:
            return Declared(fn, name, place)
        of = (
            f"{self._step}: parameter {name} is declared as {type_name(annotation)}, but step "
            f"{source.slug} may fail"
        )
        alone = self._rule == "one_failed" and self._is_of_one
        return Declared.of_type(
            without_error(annotation, source.annotation, of, alone=alone), place
        )

    def _source(
        self, parameter: inspect.Parameter, sources: Mapping[str, Source[Any]]
    ) -> Source[Any]:
        default: object = parameter.default
        if isinstance(default, Source):
            slug = default.slug
            raise ConfigurationError(
                f"{self._step}: the default of parameter {parameter.name} is a step itself: write "
                f"its output, {parameter.name}={slug}.output"
            )
        if not isinstance(default, OutputMark):
            if parameter.name not in sources:
                raise ConfigurationError(self._unknown(parameter, sources))
            return sources[parameter.name]
        marked = default.source
        if sources.get(marked.slug) is not marked:
            raise ConfigurationError(
                f"{self._step}: parameter {parameter.name} takes {marked.described} of "
                f"another flow; here there are {', '.join(sources)}"
            )
        return marked

    def _unknown(self, parameter: inspect.Parameter, sources: Iterable[str]) -> str:
        return (
            f"{self._step} has a parameter {parameter.name}, but no step before it has this name"
            f"{_hint(parameter, sources)} A parameter can be {', '.join(sources)}, or have the "
            "output of a step as its default"
        )


class ElementParameter:
    """The one parameter of a map step, whose payload is an element."""

    wants_run = False

    def __init__(self, fn: Callable[..., object], step: str, over: Source[Any]) -> None:
        """Read `fn`'s parameter; `step` names it in messages, `over` has the elements.

        Raises ConfigurationError for other parameters, and for elements of another type.
        """
        self._signature = read_signature(fn)
        self._step, self._over = step, over
        self.deps = () if over.slug == RUN else (over.slug,)
        parameter, *others = self._signature.parameters.values() or (None,)
        if parameter is None:
            raise ConfigurationError(
                f"{step} maps over {over.described}, so it takes a parameter: an element"
            )
        if others:
            raise ConfigurationError(
                f"{step} has the parameter {others[0].name} besides {parameter.name}: a map step "
                f"is given one element of {over.described} and nothing else; put what it needs "
                "into the elements"
            )
        _refuse_variadic(parameter, step)
        self._name = parameter.name
        self._is_keyword = parameter.kind is parameter.KEYWORD_ONLY
        self._declared = Declared(fn, parameter.name, f"parameter {parameter.name} of {step}")
        self._check(over)

    def decode(self, text: str) -> Arguments:
        """Decode an element. Raises InvalidInput if it does not fit."""
        value = self._declared.decode(text)
        return ((), {self._name: value}) if self._is_keyword else ((value,), {})

    def misfits(self, text: str) -> list[Misfit]:
        """Return an element that does not fit."""
        return [] if self._declared.fits(text) else [Misfit(self._over, f"[{text}]".encode())]

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """Encode an element. Raises TypeError and PayloadError."""
        return encode_sorted(_bind(self._signature, self._step, args, kwargs)[self._name])

    def _check(self, over: Source[Any]) -> None:
        wanted = annotation_of(self._declared)
        found = fits_elements(over.annotation, wanted)
        if found is None:
            raise ConfigurationError(
                f"{self._step} maps over {over.described}, which is "
                f"{type_name(over.annotation)}: a map step needs a list"
            )
        if not found:
            raise ConfigurationError(
                f"{self._step}: parameter {self._name} is declared as {type_name(wanted)}, but it "
                f"takes an element of {over.described}, which is {type_name(over.annotation)}"
            )


def _hint(parameter: inspect.Parameter, sources: Iterable[str]) -> str:
    """Return what a parameter that no step can give may have been meant to be."""
    if near := similar_name(parameter.name, sources):
        return f": did you mean {near}?"
    if parameter.name in ("ctx", "context"):
        return ": call current_flow_step() for what a step knows of its run."
    if parameter.default is not parameter.empty:
        return ": a default is only for a step that was skipped, so write a constant into the code."
    return ": define a step after all that it depends on."


def annotation_of(declared: Declared) -> object:
    """Return the declared type; Any if it names what is defined later."""
    try:
        return declared.annotation
    except ConfigurationError:
        return Any


def _refuse_variadic(parameter: inspect.Parameter, step: str) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise ConfigurationError(
            f"{step} has the parameter {parameter}: write one parameter for each step that it "
            "depends on"
        )


def _split(text: str, step: str) -> dict[str, msgspec.Raw]:
    try:
        return split_payload(text)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"what {step} is given is not a JSON object: {error}") from None


def _bind(
    signature: inspect.Signature, step: str, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Mapping[str, object]:
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(f"{step}: {error}") from None
