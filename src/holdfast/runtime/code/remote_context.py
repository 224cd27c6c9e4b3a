"""What a workflow's context offers for work of others: activities, children, approvals, updates."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Never, TypeVar, Unpack, cast, overload
from uuid import UUID

from holdfast.codec import decoder
from holdfast.definitions.workflows import Workflow
from holdfast.durations import Duration, seconds
from holdfast.names import check_signal_name, check_step_name
from holdfast.retry import Retry
from holdfast.runtime.code.activity_calls import call_activity, named_activity
from holdfast.runtime.code.approvals import Decision, approve
from holdfast.runtime.code.children import (
    ChildHandle,
    ChildOptions,
    call_child,
    send_signal,
    start_child,
)
from holdfast.runtime.code.continuing import continue_as_new
from holdfast.runtime.code.run import Run
from holdfast.runtime.code.updates import Handler, Updates
from holdfast.runtime.code.values import Values
from holdfast.types import JSON

T = TypeVar("T")
Out = TypeVar("Out")


class RemoteContext:
    """The part of a run's context that asks others for something, and answers them."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def parent_run_id(self) -> UUID | None:
        """The id of the run that started this one as its child, None if no run did."""
        return self._run.info.parent_run_id

    # Activities

    @overload
    def activity(
        self,
        name: str,
        /,
        *args: object,
        queue: str | None = None,
        retry: Retry | None = None,
        start_to_close: Duration | None = None,
        schedule_to_close: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        id: str | None = None,
    ) -> Coroutine[object, None, JSON]: ...
    @overload
    def activity(
        self,
        name: str,
        /,
        *args: object,
        type: type[T],
        queue: str | None = None,
        retry: Retry | None = None,
        start_to_close: Duration | None = None,
        schedule_to_close: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        id: str | None = None,
    ) -> Coroutine[object, None, T]: ...
    def activity(
        self,
        name: str,
        /,
        *args: object,
        type: type[T] | None = None,
        queue: str | None = None,
        retry: Retry | None = None,
        start_to_close: Duration | None = None,
        schedule_to_close: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        id: str | None = None,
    ) -> Coroutine[object, None, T | JSON]:
        """Call an activity by its name; its code may be in another program.

        ```python
        size = await ctx.activity("resize", path, 640, queue="gpu", type=Size)
        ```

        A name without an app means this run's app; an activity of another app is `app/name`.
        The activity is scheduled at once, even if it is never awaited. An option that is not given
        here is taken from the activity, if this program has it. `type` decodes the result.

        Raises ActivityFailed when its attempts are exhausted, ActivityTimedOut when time ran
        out, PayloadError for arguments that cannot be stored.
        """
        activity = named_activity(
            self._run,
            name,
            queue=queue,
            retry=retry,
            start_to_close=start_to_close,
            schedule_to_close=schedule_to_close,
            heartbeat_timeout=heartbeat_timeout,
        )
        leaf = activity.name if id is None else check_step_name(id)
        decode = None if type is None else decoder(type)
        call = call_activity(self._run, activity, leaf, args, {}, decode)
        return cast("Coroutine[object, None, T | JSON]", call)

    # Children

    @overload
    def child(
        self,
        workflow: Workflow[Any, Out],
        input: object = None,
        **options: Unpack[ChildOptions],
    ) -> Coroutine[object, None, Out]: ...
    @overload
    def child(
        self,
        workflow: str,
        input: object = None,
        *,
        type: type[T],
        **options: Unpack[ChildOptions],
    ) -> Coroutine[object, None, T]: ...
    @overload
    def child(
        self,
        workflow: str,
        input: object = None,
        **options: Unpack[ChildOptions],
    ) -> Coroutine[object, None, object]: ...
    def child(
        self,
        workflow: Workflow[Any, object] | str,
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
        `app/name`; `type` decodes its output.

        Raises ChildFailed if the child did not complete; InvalidInput, PayloadError and
        ConfigurationError for what a start would refuse. Cancelling the wait cancels the child.
        """
        return call_child(self._run, workflow, input, type, options)

    @overload
    async def start_child(
        self,
        workflow: Workflow[Any, Out],
        input: object = None,
        **options: Unpack[ChildOptions],
    ) -> ChildHandle[Out]: ...
    @overload
    async def start_child(
        self,
        workflow: str,
        input: object = None,
        *,
        type: type[T],
        **options: Unpack[ChildOptions],
    ) -> ChildHandle[T]: ...
    @overload
    async def start_child(
        self,
        workflow: str,
        input: object = None,
        **options: Unpack[ChildOptions],
    ) -> ChildHandle[object]: ...
    async def start_child(
        self,
        workflow: Workflow[Any, object] | str,
        input: object = None,
        *,
        type: type[Any] | None = None,
        **options: Unpack[ChildOptions],
    ) -> ChildHandle[Any]:
        """Start a child run, and return its handle without waiting for its end.

        It is started with this run's next commit. `options` are those of `ChildOptions`; by
        default the child continues when this run ends.
        Raises InvalidInput, PayloadError and ConfigurationError for what a start would refuse.
        """
        return start_child(self._run, workflow, input, type, options)

    def signal_run(self, run_id: UUID, name: str, payload: object = None) -> None:
        """Send a message to another run, once, with this run's next commit.

        If that run does not exist or has ended, the worker's log says so, and this run gets no
        answer. If it must know, let the other run answer with a signal. Raises InvalidName for a
        name outside `[a-zA-Z0-9._-]{1,128}`, PayloadError for a payload that cannot be stored.
        """
        send_signal(self._run, run_id, name, payload)

    # People

    @overload
    async def approve(
        self,
        title: str,
        *,
        description: str = "",
        timeout: Duration | None = None,
        id: str | None = None,
    ) -> Decision[None]: ...
    @overload
    async def approve(
        self,
        title: str,
        *,
        form: type[T],
        description: str = "",
        timeout: Duration | None = None,
        id: str | None = None,
    ) -> Decision[T]: ...
    async def approve(
        self,
        title: str,
        *,
        form: type[T] | None = None,
        description: str = "",
        timeout: Duration | None = None,
        id: str | None = None,
    ) -> Decision[T] | Decision[None]:
        """Ask for the decision of a person, and wait for it.

        ```python
        @dataclass
        class Terms:
            discount: float
            reason: Literal["volume", "loyalty"] = "volume"

        decision = await ctx.approve(f"Offer {offer.id}", form=Terms, timeout="2d")
        if decision.approved: ...
        ```

        `form` is a dataclass, msgspec struct or TypedDict of texts, numbers, booleans and
        choices; the decision's `values` are of that type. The first decision wins.

        Raises TimeoutError without a decision in time, InvalidInput for values that do not fit
        the form, ConfigurationError for a form of other fields.
        """
        leaf = "approve" if id is None else check_step_name(id)
        limit = None if timeout is None else seconds(timeout)
        return await approve(self._run, leaf, title, description, form, limit)

    def handle_update(
        self,
        name: str,
        handler: Callable[..., object],
        *,
        validate: Callable[..., object] | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Answer updates of a name from now on, beginning with those that have already come.

        ```python
        async def add(item: Item) -> int:
            items.append(await reserve(item))
            return len(items)

        ctx.handle_update("add", add, validate=check_item, timeout="1m")
        ```

        `handler` is a sync or async function. It takes the payload, decoded into the type of
        its annotation, and returns the answer. Each update runs as a task of its own. If the
        payload does not fit, or `validate` raises, the update is rejected and changes nothing.

        Raises InvalidName for a name outside `[a-zA-Z0-9._-]{1,128}`, ConfigurationError for a
        handler that takes more than the payload.
        """
        limit = None if timeout is None else seconds(timeout)
        handle = Handler(check_signal_name(name), handler, validate, limit)
        self._run.ledger(Updates).handle(handle)

    # The run itself

    def patched(self, id: str) -> bool:
        """Return True if changed code takes its new path here.

        ```python
        if ctx.patched("check-stock"):
            await check_stock(order)
        ```

        It is True for a run that comes here for the first time, and stays True for that run. It
        is False if the log shows that older code has passed here: the run continues as it began.
        """
        return self._run.ledger(Values).patched(check_step_name(id))

    def continue_as_new(self, input: object = None, *, version: int | None = None) -> Never:
        """End this run and continue as a new one with an empty log, for loops without an end.

        The new run gets the messages that were not read, and the name, tags and queue. Callers
        that wait for the result wait for the new run's. Activities that were called and not
        awaited end first.

        Raises InvalidInput and PayloadError for an input that a start would refuse, and
        ConfigurationError anywhere but in the workflow's own task.
        """
        raise continue_as_new(self._run, input, version)
