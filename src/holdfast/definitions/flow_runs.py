"""Steps of flows that are runs: of a workflow, or of another flow."""

from __future__ import annotations

import math
from typing import Any, TypeVar, Unpack, cast

import msgspec

from holdfast.definitions.flow_conditions import may_cascade, may_skip
from holdfast.definitions.flow_maps import map_output
from holdfast.definitions.flow_parameters import RUN, Source
from holdfast.definitions.flow_rules import check_dependencies
from holdfast.definitions.flow_steps import RunMapOptions, decode_each, read_shape
from holdfast.definitions.flow_types import admits_none, fits, fits_elements, type_name
from holdfast.definitions.options import option
from holdfast.definitions.startable import Startable
from holdfast.errors import ConfigurationError
from holdfast.types import FlowShape
from holdfast.values.names import check_flow_step_name, split_name

Out_co = TypeVar("Out_co", covariant=True)


class RunStep(Source[Out_co]):
    """A step of a flow that is a run of a workflow or of another flow.

    The run is given the output of the step that this one depends on, or the input of the flow's
    run; its output is the step's. A map has a run for each element of a list, and its output is
    the list of theirs. `definition` is the workflow or flow.
    """

    def __init__(
        self,
        name: str,
        definition: Startable[Any, Any],
        flow: FlowShape,
        source: Source[Any],
        run: Source[Any],
        *,
        is_map: bool = False,
        **options: Unpack[RunMapOptions],
    ) -> None:
        """Make a step of `flow`; `source` gives the input of its run, or the list to map over.

        `run` is the input of the flow's runs. Raises ConfigurationError for types that do not fit
        and for options that cannot work.
        """
        self.flow = split_name(flow.name)[1]
        self.definition, self.is_map = definition, is_map
        with option(f"flow {self.flow}", "step"):
            self._name = check_flow_step_name(name)
        of = str(self)
        # Callers without a type checker pass anything.
        if not isinstance(definition, Startable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"{of} runs a workflow or a flow, not {definition!r}")
        if definition.full_name == flow.name:
            raise ConfigurationError(f"{of} would start a run of its own flow, and that the next")
        self._check(source)
        deps = () if source.slug == RUN else (source.slug,)
        check_dependencies("none_failed", of, dict.fromkeys(deps, source.trigger_rule), ())
        outputs = dict.fromkeys(deps, source.annotation)
        shape = read_shape(
            self._name, options, of, is_map=is_map, given=run.annotation, outputs=outputs
        )
        self.queue = shape.queue or definition.queue
        limit = shape.timeout
        if limit is None and definition.timeout_seconds is not None:
            limit = max(1, math.ceil(definition.timeout_seconds))
        self.shape = msgspec.structs.replace(
            shape,
            queue=self.queue,
            timeout=limit,
            runs=f"{definition.full_name}@{definition.version}",
            runs_kind=definition.kind,
        )
        self.may_be_skipped = may_skip(self.shape)
        self.may_cascade = may_cascade(self.shape, [source])

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        return f"step {self._name} of flow {self.flow}"

    @property
    def slug(self) -> str:
        """The step's name, as the database has it."""
        return self._name

    @property
    def annotation(self) -> object:
        """The declared type of its output; Any if none is declared."""
        returned = self.definition.output_annotation
        return map_output(returned, self.shape) if self.is_map else returned

    def decode_output(self, text: str | bytes | msgspec.Raw) -> Out_co:
        """Decode its output, of a map the list of the outputs. Raises InvalidInput."""
        if not self.is_map:
            return cast("Out_co", self.definition.decode_output(text))
        decode = self.definition.decode_output
        return cast("Out_co", decode_each(text, decode, self.shape, str(self)))

    def _check(self, source: Source[Any]) -> None:
        """Refuse a source whose value, or whose elements, the run cannot be given."""
        wanted, found = self.definition.input_annotation, source.annotation
        what = f"{self.definition.kind} {self.definition.name} takes {type_name(wanted)}"
        if self.is_map:
            element_fits = fits_elements(found, wanted)
            if element_fits is None:
                raise ConfigurationError(
                    f"{self} maps over {source.described}, which is {type_name(found)}: it needs "
                    "a list"
                )
            if not element_fits:
                raise ConfigurationError(
                    f"{self}: {what}, but it is given an element of {source.described}, which is "
                    f"{type_name(found)}"
                )
            return
        if not fits(found, wanted):
            raise ConfigurationError(
                f"{self}: {what}, but {source.described} is {type_name(found)}"
            )
        if source.may_be_skipped and not admits_none(wanted):
            raise ConfigurationError(
                f"{self}: {what}, but step {source.slug} may be skipped, and gives None then"
            )
