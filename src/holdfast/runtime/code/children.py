"""Child runs, of workflows and of flows: started by a run, awaited by it or let go."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Generic, TypeVar, Unpack, cast, get_args, overload
from uuid import UUID

import msgspec

from holdfast.codec import Decode, decoder, describe, encode, fingerprint, texts_before_fields
from holdfast.definitions.options import AnyRunOptions, check_on_cancel, check_options, option
from holdfast.definitions.startable import Startable
from holdfast.details import ChildStarted, OnCancel, ParentClose
from holdfast.errors import (
    ENDED_AS,
    ChildFailed,
    ConfigurationError,
    InvalidInput,
    RunTerminated,
    UnknownWorkflow,
)
from holdfast.events import CHILD_COMPLETED, read_child_completed, read_child_failed
from holdfast.runtime.code.commands import Command, Commands
from holdfast.runtime.code.history import CHILD
from holdfast.runtime.code.run import ContextPart, Run
from holdfast.runtime.code.sending import send_signal
from holdfast.runtime.code.values import Values
from holdfast.runtime.loop.tasks import DeferredCall
from holdfast.types import PRIORITIES, Event, RunKind
from holdfast.values.attributes import check_attributes
from holdfast.values.durations import seconds
from holdfast.values.ids import child_run_id, keyed_run_id
from holdfast.values.names import (
    check_queue_name,
    check_reference,
    check_step_name,
    full_name,
    split_name,
)
from holdfast.values.numbers import whole_number
from holdfast.values.retention import declared_seconds
from holdfast.values.texts import check_headers, check_id, check_reason, check_tags
from holdfast.values.trace_ids import successor_headers

T = TypeVar("T")
Out = TypeVar("Out")
T_co = TypeVar("T_co", covariant=True)

_CLOSES: Final[tuple[str, ...]] = get_args(ParentClose)


class ChildOptions(AnyRunOptions, total=False):
    """What a call may say about the child that it starts."""

    key: str | None
    """The same key finds the same run of a workflow: the run's id derives from it."""
    version: int | None
    """The workflow's version. For a workflow given by name: the highest in this program, else 1."""
    parent_close: ParentClose
    """What happens to the child when this run ends.

    By default `"cancel"`; `"abandon"` if it was started with `start_child`, or if `on_cancel` says
    so.
    """
    on_cancel: OnCancel
    """What happens to an awaited child when the code that awaits it is cancelled.

    It is asked to cancel (`"try"`, the default), also waited for (`"wait"`), or neither
    (`"abandon"`).
    """
    id: str | None
    """The call's name in the log; by default the workflow's."""


class ChildHandle(Generic[T_co]):
    """A child run that was started without waiting for its end."""

    __slots__ = ("_command", "_read", "_run")

    def __init__(self, run: Run, command: Command, read: Callable[[Event], object]) -> None:
        self._run, self._command, self._read = run, command, read

    def __repr__(self) -> str:
        return f"<ChildHandle {self.run_id}>"

    @property
    def run_id(self) -> UUID:
        """The child's id."""
        assert self._command.run_id is not None, "a child's command names its run"
        return self._command.run_id

    async def result(self) -> T_co:
        """Wait for the child's end, and return its output.

        Raises ChildFailed if it did not complete. Cancelling the wait leaves the child alone.
        """
        event = await self._run.ledger(Commands).end_of(self._command, withdraw=False)
        return cast("T_co", self._read(event))

    def signal(self, name: str, payload: object = None) -> None:
        """Send a message to the child, with this run's next commit.

        Raises InvalidName for a name outside `[a-zA-Z0-9._-]{1,128}`, PayloadError for a payload
        that cannot be stored.
        """
        send_signal(self._run, self.run_id, name, payload)

    def cancel(self, reason: str | None = None) -> None:
        """Ask the child to stop, with this run's next commit; do nothing if it has ended.

        Raises InvalidInput for a reason that cannot be stored.
        """
        self._run.ledger(Commands).cancel(self._command, check_reason(reason))


class ChildPart(ContextPart):
    """The part of a context that starts child runs."""

    __slots__ = ()

    @overload
    def child(
        self, workflow: Startable[Any, Out], input: object = None, **options: Unpack[ChildOptions]
    ) -> Coroutine[object, None, Out]: ...
    @overload
    def child(
        self, workflow: str, input: object = None, *, type: type[T], **options: Unpack[ChildOptions]
    ) -> Coroutine[object, None, T]: ...
    @overload
    def child(
        self, workflow: str, input: object = None, **options: Unpack[ChildOptions]
    ) -> Coroutine[object, None, object]: ...
    def child(
        self,
        workflow: Startable[Any, object] | str,
        input: object = None,
        *,
        type: type[Any] | None = None,
        **options: Unpack[ChildOptions],
    ) -> Coroutine[object, None, object]:
        """Start a child run with options, and wait for its output.

        ```python
        label = await ctx.child(ship, parcel, key=parcel.id, timeout="2d")
        ```

        `options` are those of `ChildOptions`. With a `key` the same workflow has one run of that
        key, however often it is called; `parent_close` says what becomes of a child that outlives
        this run. A workflow of another program is given by its name, one of another app by
        `app/name`; `type` decodes its output. All of it holds for flows too.

        Raises ChildFailed if the child did not complete; InvalidInput, PayloadError and
        ConfigurationError for what a start would refuse. Cancelling the wait cancels the child,
        unless `on_cancel` says otherwise.
        """
        return call_child(self._run, workflow, input, type, options)

    @overload
    async def start_child(
        self, workflow: Startable[Any, Out], input: object = None, **options: Unpack[ChildOptions]
    ) -> ChildHandle[Out]: ...
    @overload
    async def start_child(
        self, workflow: str, input: object = None, *, type: type[T], **options: Unpack[ChildOptions]
    ) -> ChildHandle[T]: ...
    @overload
    async def start_child(
        self, workflow: str, input: object = None, **options: Unpack[ChildOptions]
    ) -> ChildHandle[object]: ...
    async def start_child(
        self,
        workflow: Startable[Any, object] | str,
        input: object = None,
        *,
        type: type[Any] | None = None,
        **options: Unpack[ChildOptions],
    ) -> ChildHandle[Any]:
        """Start a child run, and return its handle without waiting for its end.

        It is started with this run's next commit. `options` are those of `ChildOptions`, without
        `on_cancel`; by default the child continues when this run ends.
        Raises InvalidInput, PayloadError and ConfigurationError for what a start would refuse.
        """
        if "on_cancel" in options:
            raise TypeError(
                "on_cancel is an option of ctx.child, which awaits the child: cancelling the wait "
                "for the result of a handle leaves the child alone"
            )
        command, read = _start(self._run, workflow, input, type, options, "abandon")
        return ChildHandle(self._run, command, read)


def call_startable(
    run: Run,
    startable: Startable[Any, object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> DeferredCall:
    """Start a child run for a plain call of its workflow or flow."""
    if len(args) > 1 or kwargs:
        raise TypeError(
            f"{startable.kind} {startable.name} takes at most one input, as a positional argument, "
            "and no context: the run that it starts has its own"
        )
    return call_child(run, startable, args[0] if args else None, type=None, options={})


def call_child(
    run: Run,
    workflow: Startable[Any, object] | str,
    input: object,
    type: type[Any] | None,
    options: ChildOptions,
) -> DeferredCall:
    """Start a child run. `on_cancel` says what a cancel of the task that awaits it does to it."""
    close: ParentClose = "abandon" if options.get("on_cancel") == "abandon" else "cancel"
    command, read = _start(run, workflow, input, type, options, close)
    return run.ledger(Commands).call(command, read)


def _start(
    run: Run,
    workflow: Startable[Any, object] | str,
    input: object,
    type: type[Any] | None,
    options: ChildOptions,
    parent_close: ParentClose,
) -> tuple[Command, Callable[[Event], object]]:
    loop, commands = run.loop, run.ledger(Commands)
    check_options(options, ChildOptions.__annotations__, "a child")
    own_key, leaf = options.get("key"), options.get("id")
    name, version = _full_name(run, workflow), options.get("version")
    if version is not None:
        whole_number(version, f"child {name}", "version", 1)
    known = _find_definition(run, workflow)
    local = _of_version(known, version)
    text = local.encode_input(input) if local else encode(input)
    decode = _decoder(local, type)
    key = loop.scope().key(split_name(name)[1] if leaf is None else check_step_name(leaf))
    run_id = _child_id(run, name, key, None if own_key is None else check_id("key", own_key))
    command = commands.children.get(run_id)
    if command is None:
        earlier = functools.partial(texts_before_fields, text, input)
        with option(f"child {name}", "on_cancel"):
            policy = check_on_cancel(options.get("on_cancel", "try"))
        command = Command(CHILD, key, name, fingerprint(text), run_id, earlier, policy, own_key)
        kind = None if known is None else known.kind
        started = _started(run, command, local, text, options, parent_close, kind)
        commands.give(command, lambda: started)
        if own_key is not None:
            commands.children[run_id] = command
    is_checked = type is None and local is not None and local.kind == "workflow"
    return command, _reader(run, command, decode, is_checked)


def _full_name(run: Run, workflow: Startable[Any, object] | str) -> str:
    """Return a workflow's name with its app, by default the run's own app."""
    if isinstance(workflow, Startable):
        return workflow.full_name
    name = check_reference("a workflow", workflow)
    return name if "/" in name else full_name(run.workflow.registry.name, name)


def _find_definition(
    run: Run, workflow: Startable[Any, object] | str
) -> Startable[Any, object] | None:
    """Return the definition of a workflow or a flow, None if it is in another program."""
    if isinstance(workflow, Startable):
        return workflow
    registry = run.workflow.registry
    app, name = split_name(workflow)
    if app not in ("", registry.name):
        return None
    try:
        return registry.startable(name)
    except UnknownWorkflow:
        return None


def _of_version(
    known: Startable[Any, object] | None, version: int | None
) -> Startable[Any, object] | None:
    if known is None or version is None or version == known.version:
        return known
    return known.of_version(version)


def _decoder(local: Startable[Any, object] | None, type: type[Any] | None) -> Decode:
    if type is not None:
        return decoder(type)
    return local.decode_output if local else decoder(object)


def _started(
    run: Run,
    command: Command,
    local: Startable[Any, object] | None,
    text: str,
    options: ChildOptions,
    parent_close: ParentClose,
    kind: RunKind | None,
) -> ChildStarted:
    """Check the options of a child, and return the command that starts it."""
    queue, priority, version = options.get("queue"), options.get("priority"), options.get("version")
    if queue is None:
        queue = local.queue if local else None
    if priority is None:
        priority = local.priority if local else None
    if priority is not None:
        whole_number(priority, f"child {command.name}", "priority", 0, PRIORITIES[-1])
    if version is None:
        version = local.version if local else 1
    parent_close = options.get("parent_close", parent_close)
    if parent_close not in _CLOSES:
        raise ConfigurationError(
            f"child {command.name}: parent_close is {', '.join(_CLOSES)}, not {parent_close!r}"
        )
    key, timeout = options.get("key"), options.get("timeout")
    timeout_seconds = local.timeout_seconds if local else None
    assert command.run_id is not None, "a child's command names its run"
    return ChildStarted(
        workflow_name=command.name,
        version=version,
        args=command.args or 0,
        child_run_id=command.run_id,
        input=msgspec.Raw(text),
        queue=None if queue is None else check_queue_name(queue),
        priority=priority,
        key=key if command.run_id.bytes[0] == 0xFF else None,
        parent_close=parent_close,
        timeout=timeout_seconds if timeout is None else seconds(timeout),
        retention=declared_seconds(
            None, local.retention_seconds if local else None, is_known=local is not None
        ),
        tags=check_tags(options.get("tags", ())),
        headers=_headers(run, options, parent_close),
        kind=kind,
        attributes=check_attributes(options.get("attributes")) or msgspec.UNSET,
        on_cancel=msgspec.UNSET if command.on_cancel == "try" else command.on_cancel,
    )


def _headers(
    run: Run, options: ChildOptions, parent_close: ParentClose
) -> Mapping[str, str] | None:
    """Return the headers of a child: those of its parent, with those of the call added.

    A child that outlives its parent has a trace of its own, with a link to its parent.
    """
    inherited, own = run.info.headers, check_headers(options.get("headers"))
    if parent_close == "abandon":
        inherited = successor_headers(inherited, run.info.run_id)
    if not inherited or not own:
        return own or inherited
    return {**inherited, **own}


def _reader(
    run: Run, command: Command, decode: Decode, is_checked: bool
) -> Callable[[Event], object]:
    def read(event: Event) -> object:
        text = event.details or ""
        if event.type == CHILD_COMPLETED:
            try:
                return decode(read_child_completed(text).output)
            except InvalidInput as misfit:
                values, key = run.ledger(Values), command.key
                raise values.misfit(misfit, key, was_checked=is_checked) from None
        failed = read_child_failed(text)
        error = failed.error
        if error is None:
            how = ENDED_AS.get(failed.status, RunTerminated)
            error = describe(how(failed.child_run_id))
        run.history.note_failures().tell(command.key, run.history.position)
        raise ChildFailed(command.key, error, failed.status, failed.child_run_id)

    return read


def _child_id(run: Run, name: str, call: str, key: str | None) -> UUID:
    """Return the id of a child. A fork gets its own children, even for the same keys.

    If it shared the children of its origin, a child that failed there could not be tried again.
    """
    parent, began = run.info.run_id, run.info.began
    if key is None:
        return child_run_id(parent, call, began)
    if run.seed != parent:
        return child_run_id(parent, f"{name}\0{key}", began)
    return keyed_run_id(name, key)
