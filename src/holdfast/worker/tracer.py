"""What a worker tells of attempts and of ends of runs, for traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol
from uuid import UUID

from holdfast.definitions.recorded import AttemptContext
from holdfast.store.port import Store
from holdfast.types import ErrorInfo


class OpenSpan(Protocol):
    """The span of an attempt under way."""

    def finish(self, error: ErrorInfo | None, *, stopped: bool = False) -> None:
        """End it: with a result, with an error, or because the worker has stopped the attempt."""


class Tracer(Protocol):
    """Makes spans. Its methods neither wait nor raise; the worker's event loop calls them."""

    @property
    def dropped(self) -> int:
        """How many spans were dropped, because more ended than could be written."""
        ...

    async def start(self, store: Store, now: Callable[[], int]) -> None:
        """Begin. `store` is the worker's, to read runs that have ended; `now` the engine's time."""

    async def stop(self) -> None:
        """Write what has ended until now."""

    def headers_of(self, run_id: UUID, headers: Mapping[str, str] | None) -> Mapping[str, str]:
        """Return a run's headers with its trace context, which its children inherit.

        They are `QuietHeaders` if its trace is not sampled.
        """
        ...

    def begin(
        self,
        context: AttemptContext,
        lease_no: int,
        started_at: int,
        headers: Mapping[str, str] | None,
    ) -> OpenSpan | None:
        """Begin the span of an attempt; None if its trace is not sampled.

        Called within the context variables of the attempt: the span becomes the current one there.
        `headers` are those of its run; it is not called if they are `QuietHeaders`.
        """
        ...

    def run_ended(self, run_id: UUID, headers: Mapping[str, str] | None) -> None:
        """Write the span of a run whose end is durable, with those that its log tells of."""
