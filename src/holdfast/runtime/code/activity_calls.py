"""Calls of activities: commands that any worker of their queue takes."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from contextlib import nullcontext
from typing import Final, TypeVar, cast, overload

import msgspec

from holdfast.codec import Decode, decoder, fingerprint
from holdfast.definitions.activities import Activity
from holdfast.details import ActivityScheduled, OnCancel, RetryPolicy
from holdfast.errors import ActivityFailed, ActivityTimedOut, InvalidInput
from holdfast.events import ACTIVITY_COMPLETED, read_activity_completed, read_activity_failed
from holdfast.retry import Retry
from holdfast.runtime.code.commands import Command, Commands
from holdfast.runtime.code.history import ACTIVITY
from holdfast.runtime.code.run import ContextPart, Run
from holdfast.runtime.code.values import Values
from holdfast.runtime.loop.tasks import DeferredCall
from holdfast.types import JSON, Event
from holdfast.values.durations import Duration
from holdfast.values.names import check_reference, check_step_name, full_name, split_name

T = TypeVar("T")


class ActivityPart(ContextPart):
    """The part of a context that calls activities by name."""

    __slots__ = ()

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
        on_cancel: OnCancel | None = None,
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
        on_cancel: OnCancel | None = None,
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
        on_cancel: OnCancel | None = None,
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
        local, app, own = _find(self._run, name)
        activity = (local or _ELSEWHERE).with_options(
            queue=queue,
            retry=self._run.workflow.registry.retry if retry is None and not local else retry,
            start_to_close=start_to_close,
            schedule_to_close=schedule_to_close,
            heartbeat_timeout=heartbeat_timeout,
            on_cancel=on_cancel,
        )
        if local is None:
            activity.full_name, activity.name = full_name(app, own), own
        leaf = activity.name if id is None else check_step_name(id)
        decode = None if type is None else decoder(type)
        call = call_activity(self._run, activity, leaf, args, {}, decode)
        return cast("Coroutine[object, None, T | JSON]", call)


def call_activity(
    run: Run,
    activity: Activity[..., object],
    leaf: str,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    decode: Decode | None = None,
) -> DeferredCall:
    """Schedule an activity, whether or not the caller awaits its end. `leaf` names the call.

    `decode` reads the result if the activity itself does not know its type.

    Raises PayloadError for arguments that cannot be stored.
    """
    text = activity.encode_arguments(args, kwargs)
    command = Command(
        ACTIVITY,
        run.loop.scope().key(leaf),
        activity.full_name,
        fingerprint(text),
        earlier=lambda: activity.arguments_before_fields(text, args, kwargs),
        on_cancel=activity.on_cancel,
    )
    commands = run.ledger(Commands)
    commands.give(
        command,
        lambda: _scheduled(
            activity,
            command,
            text,
            activity.count_units(args, kwargs),
            is_misfit=_is_misfit(run, activity, text),
            kept_key=None if run.info.forked_at is None else run.info.key,
        ),
    )

    def read(event: Event) -> object:
        is_declared = decode is None
        return _result(run, command.key, decode or activity.decode_result, event, is_declared)

    return commands.call(command, read)


def _scheduled(
    activity: Activity[..., object],
    command: Command,
    arguments: str,
    units: int | None,
    *,
    is_misfit: bool,
    kept_key: str | None,
) -> ActivityScheduled:
    return ActivityScheduled(
        activity_name=activity.full_name,
        args=command.args or 0,
        input=msgspec.Raw(arguments),
        queue=activity.queue,
        retry=_policy(activity.retry),
        start_to_close=activity.start_to_close_seconds,
        schedule_to_close=activity.schedule_to_close_seconds,
        heartbeat_timeout=activity.heartbeat_timeout_seconds,
        units=msgspec.UNSET if units is None else units,
        on_cancel=msgspec.UNSET if activity.on_cancel == "try" else activity.on_cancel,
        misfit=is_misfit or msgspec.UNSET,
        run_key=msgspec.UNSET if kept_key is None else kept_key,
    )


def _is_misfit(run: Run, activity: Activity[..., object], arguments: str) -> bool:
    """Return True if arguments do not fit the code that is called: no roll-back would mend that.

    That runs code of the parameters' types, which may read a clock: it is the activity's code.
    """
    watch = run.loop.watch
    with nullcontext() if watch is None else watch.paused():
        try:
            activity.decode_arguments(arguments)
        except BaseException:  # as the worker that is to begin an attempt; the code continues
            return True
    return False


def _policy(retry: Retry) -> RetryPolicy:
    """Return a policy as it is recorded; the worker of the attempt asks `should_retry`."""
    base, longest = retry.base_seconds, retry.max_seconds
    return RetryPolicy(retry.attempts, retry.backoff, base, longest, retry.factor, retry.jitter)


def _result(run: Run, key: str, decode: Decode, event: Event, is_declared: bool) -> object:
    """Return the result that an end has, or raise its error.

    Workers check results; who completes an activity from outside may give any.
    """
    text = event.details or ""
    if event.type == ACTIVITY_COMPLETED:
        done = read_activity_completed(text)
        try:
            return decode(done.result)
        except InvalidInput as error:
            was_checked = is_declared and done.started_at is not None
            raise run.ledger(Values).misfit(error, key, was_checked=was_checked) from None
    failed = read_activity_failed(text)
    run.history.note_failures().tell(key, run.history.position)
    raise (ActivityTimedOut if failed.timed_out else ActivityFailed)(key, failed.error)


def _find(run: Run, name: str) -> tuple[Activity[..., object] | None, str, str]:
    """Return the activity of a name, None if its code is in another program; its app and own name.

    `name` is an activity of the run's own app, `app/name` one of another app. Raises InvalidName
    outside `[a-zA-Z0-9._-]{1,128}`.
    """
    registry = run.workflow.registry
    app, own = split_name(check_reference("an activity", name))
    app = app or registry.name
    return registry.activities.get(own) if app == registry.name else None, app, own


async def _elsewhere(*args: object) -> object:
    raise NotImplementedError("the code of this activity is in another program")


_ELSEWHERE: Final[Activity[..., object]] = Activity(_elsewhere)
