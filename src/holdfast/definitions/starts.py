"""Check the options of a start, and make the runs that the store is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from datetime import datetime
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias, cast
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.codec import encode
from holdfast.definitions.options import AnyRunOptions, check_options
from holdfast.definitions.start_rules import RuleOptions, rules_of_start
from holdfast.definitions.startable import AnyStartable, Startable
from holdfast.errors import ConfigurationError, InvalidInput, PayloadError
from holdfast.types import PRIORITIES, IfEnded, NewRun, RunKind
from holdfast.values.attributes import check_attributes
from holdfast.values.durations import Duration, seconds
from holdfast.values.ids import keyed_run_id, read_id, uuid7
from holdfast.values.moments import checked_micros
from holdfast.values.names import check_queue_name, check_reference, split_name
from holdfast.values.numbers import whole_number
from holdfast.values.retention import declared_seconds
from holdfast.values.texts import check_headers, check_id, check_tags, several

ToStart: TypeAlias = AnyStartable | Callable[..., object] | str
"""What callers start: a workflow or a flow, a job (which can be called), or the name of one."""

_RULES: Final = RuleOptions.__optional_keys__
_NO_ID: Final = UUID(int=0)  # of a template


class Startables(Protocol):
    """An app, or its registry: what it can start, by name."""

    @property
    def name(self) -> str: ...

    def startable(self, name: str, version: int | None = None) -> AnyStartable: ...


class RunOptions(AnyRunOptions, RuleOptions, total=False):
    """Options of any start: they hold for each of its runs."""

    delay: Duration | None
    """How long after now the run becomes due."""
    start_at: datetime | None
    """The moment at which the run becomes due, with a time zone."""
    version: int | None
    """The workflow's version; the run keeps it."""
    retention: Duration | None
    """How long after its end the run is kept; HOLDFAST_MAX_RETENTION_DAYS (365) at most."""


class TransactionOptions(RunOptions, total=False):
    """Options of a start that may be part of the caller's transaction."""

    connection: object
    """The caller's own connection or session; the start becomes part of its transaction."""
    notify: bool
    """Wake workers when that transaction commits, which then waits for others that notify."""


class KeyedStartOptions(RunOptions, total=False):
    """Options of `MessageContext.start`."""

    key: str | None
    """The same key finds the same run of a workflow: the run's id is made from it."""


class SingleStartOptions(KeyedStartOptions, total=False):
    """Options of a client's start of one run."""

    if_ended: IfEnded
    """What to do if the key's run has ended: "return" it, "start" another run, or "refuse"."""
    run_id: UUID | None
    """The run's id, if the caller has drawn one."""


class StartOptions(SingleStartOptions, TransactionOptions, total=False):
    """Options of `Client.start`."""


class StartManyOptions(TransactionOptions, total=False):
    """Options of `Client.start_many`."""

    keys: Iterable[str] | None
    """A key for each input."""
    if_ended: IfEnded
    """What to do if a key's run has ended: "return" it, "start" another run, or "refuse"."""


class StartAndWaitOptions(SingleStartOptions, total=False):
    """Options of `Client.run`."""

    wait: Duration | None
    """How long to wait for the run's end. The run continues after that."""


class PreparedStart(msgspec.Struct, frozen=True):
    """Checked options of a start, ready to make runs for any number of inputs.

    `template` has what these runs share.
    """

    workflow: AnyStartable | None
    encode: Callable[[object], str]
    template: NewRun

    def run(
        self,
        input: object,
        *,
        key: str | None = None,
        run_id: UUID | None = None,
        waiter: str | None = None,
    ) -> NewRun:
        """Return one run. Raises InvalidInput, and PayloadError for what JSON cannot hold."""
        if key is not None:
            if run_id is not None:
                raise ConfigurationError("give a run either a key or a run_id: a key makes the id")
            run_id = keyed_run_id(self.template.name, check_id("key", key))
        run_id, text = uuid7() if run_id is None else read_id(run_id), self.encode(input)
        return replace(self.template, run_id=run_id, key=key, input=text, waiter=waiter)

    def runs(self, inputs: Iterable[object], keys: Iterable[str] | None) -> list[NewRun]:
        """Return a run for each input. An error has the number of the input that it is about."""
        made, given = list[NewRun](), several("inputs", inputs)
        names = None if keys is None else _keys_of(given, keys)
        try:
            if names is None:
                encode, template = self.encode, self.template
                for input in given:
                    made.append(replace(template, run_id=uuid7(), input=encode(input)))
            else:
                for input, key in zip(given, names, strict=True):
                    made.append(self.run(input, key=key))
        except PayloadError as error:
            raise type(error)(f"input {len(made)}: {error}") from error
        return made


def _keys_of(inputs: list[object], keys: Iterable[str]) -> list[str]:
    """Return the keys of inputs. Raises InvalidInput unless there are as many."""
    most = len(inputs) + 1  # an iterator may have no end
    given = several("keys", islice(keys, most) if isinstance(keys, Iterator) else keys, str)
    if len(given) != len(inputs):
        found = "more" if len(given) > len(inputs) else f"{len(given):,}"
        raise InvalidInput(f"keys: {len(inputs):,} are needed, one for each input, not {found}")
    return given


class _Defaults(msgspec.Struct, frozen=True):
    """What a workflow has of which only the name is known: None is as its code has declared."""

    kind: RunKind = "workflow"
    queue: str | None = None
    priority: int | None = None
    timeout_seconds: float | None = None
    retention_seconds: float | None = None


def prepare(
    workflow: ToStart,
    app: Startables | None,
    options: RunOptions,
    known_options: Set[str],
    kind: RunKind = "workflow",
) -> PreparedStart:
    """Check the options of a start of a workflow; `app` completes a name that has no app.

    `kind` is that of the runs of a name which the app does not have.

    Raises UnknownWorkflow for a name that the app does not have, ConfigurationError for an
    option that cannot work, TypeError for one that is not known.
    """
    if unknown := options.keys() - known_options:
        check_options(sorted(unknown), known_options, "start (arguments by name are input={…})")
    wanted = cast("AnyStartable | str", workflow)  # it may be any function, which is refused
    name, version, known = _resolve(wanted, app, options.get("version"), kind)
    attributes = options.get("attributes")
    delay, start_at, timeout = options.get("delay"), options.get("start_at"), options.get("timeout")
    if delay is not None and start_at is not None:
        raise ConfigurationError("give either delay or start_at, not both")
    defaults = _Defaults(kind) if known is None else known
    queue = options.get("queue")
    template = NewRun(
        run_id=_NO_ID,
        kind=defaults.kind,
        name=name,
        version=version,
        queue=defaults.queue if queue is None else check_queue_name(queue),
        priority=_priority(options.get("priority"), defaults.priority),
        start_at=None if start_at is None else checked_micros(start_at),
        delay_seconds=None if delay is None else seconds(delay),
        timeout_seconds=defaults.timeout_seconds if timeout is None else seconds(timeout),
        retention_seconds=declared_seconds(
            options.get("retention"), defaults.retention_seconds, is_known=known is not None
        ),
        tags=check_tags(options["tags"]) if "tags" in options else (),
        headers=check_headers(options["headers"]) if "headers" in options else None,
        rules=_rules(known, options),
        attributes=check_attributes(attributes) if attributes else {},
    )
    return PreparedStart(known, encode if known is None else known.encode_input, template)


def _resolve(
    workflow: AnyStartable | str, app: Startables | None, version: int | None, kind: RunKind
) -> tuple[str, int, AnyStartable | None]:
    if version is not None:
        whole_number(version, "a start", "version", 1)
    if not isinstance(workflow, str):
        if not isinstance(workflow, Startable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"a start takes a workflow (a function under @app.workflow), a job, a flow, or its "
                f"name, not {workflow!r}: let a workflow call steps and activities, or make one a "
                "job, with @app.job"
            )
        return workflow.full_name, version or workflow.version, workflow
    of, name = split_name(check_reference("a workflow", workflow))
    if app is None or of not in ("", app.name):
        newest = 0 if kind == "flow" else 1
        return workflow, version or newest, None
    found = app.startable(name, version)
    return found.full_name, found.version, found


def _rules(known: AnyStartable | None, options: RunOptions) -> str | None:
    declared = None if known is None else known.rules
    if declared is None and options.keys().isdisjoint(_RULES):
        return None
    return rules_of_start(Any if known is None else known.input_annotation, declared, options)


def _priority(wish: int | None, default: int | None) -> int | None:
    """Return the priority of a start; that of the definition was checked there."""
    if wish is None:
        return default
    return whole_number(wish, "a start", "priority", 0, PRIORITIES[-1])
