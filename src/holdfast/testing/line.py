"""The line between the workers of an environment and its store: what kills them cuts it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from holdfast.testing.plan import LoggedStore, Plan

# The calls with which a worker records what has happened, and the argument that has it.
RECORDS: Final[Mapping[str, str]] = {
    "commit": "turns",
    "end_activities": "ends",
    "end_step_tasks": "ends",
}
# The calls with which others write to logs.
SENDS: Final = frozenset(
    {
        *("start_runs", "start_flows", "signal_runs", "cancel_runs", "terminate_runs"),
        *("pause_runs", "resume_runs", "reschedule_runs", "decide_approval", "receive_webhook"),
        "publish",
        *("end_activities", "fork_run", "fork_flow", "retry_flow", "trigger_schedule"),
    }
)


class Line:
    """A store, as the workers of one life of an environment reach it; or its client.

    `kill` ends these workers. Calls that are under way then get no answer.
    """

    def __init__(
        self, store: LoggedStore, plan: Plan, kill: Callable[[], None], *, of_client: bool = False
    ) -> None:
        self._store, self._plan, self._kill = store, plan, kill
        self._of_client = of_client
        self.is_cut = False

    def __getattr__(self, name: str) -> Any:
        """Return what the store has; each call of it passes through the plan."""
        found = getattr(self._store, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: object, **kwargs: object) -> object:
            return await self._pass(name, found, args, kwargs)

        self.__dict__[name] = call  # found without this function from now on
        return call

    async def _pass(
        self,
        name: str,
        method: Callable[..., Awaitable[object]],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> object:
        await self._plan.pause()
        self._check()
        if self._of_client:
            answer = await method(*args, **kwargs)
            if name in SENDS and self._plan.sent(name):
                self._kill()
        elif name in RECORDS:
            answer = await self._record(name, method, args, kwargs)
        else:
            answer = await method(*args, **kwargs)
        await self._plan.pause()
        self._check()
        return answer

    def _check(self) -> None:
        """Stop the task that calls, if its worker was killed. Raises CancelledError."""
        if self.is_cut:
            raise asyncio.CancelledError

    async def _record(
        self,
        name: str,
        method: Callable[..., Awaitable[object]],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> object:
        """Let a worker record something, all or a part of it; in the second case it is killed."""
        given = inspect.signature(method).bind(*args, **kwargs)
        kept = self._plan.keep(self._store, name, given.arguments[RECORDS[name]])
        if kept is None:
            return await method(*args, **kwargs)
        if kept:
            given.arguments[RECORDS[name]] = kept
            await method(*given.args, **given.kwargs)
        self._plan.killed(self._store)
        self._kill()
        raise asyncio.CancelledError
