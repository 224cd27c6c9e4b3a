"""`app.consumer(…)`: the part of an app that takes messages from queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from holdfast.definitions.consumers import Consumer
from holdfast.definitions.workflows import Registry
from holdfast.errors import ConfigurationError
from holdfast.retry import Retry
from holdfast.values.durations import Duration


class Consuming:
    """The consumers of an app."""

    registry: Registry

    @property
    def consumers(self) -> Mapping[str, Consumer]:
        """All consumers by the queue that they receive from."""
        return MappingProxyType(self.registry.consumers)

    def consumer(
        self,
        queue: str,
        *,
        name: str | None = None,
        batch: int | None = None,
        concurrency: int = 10,
        visibility: Duration | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> Callable[[Callable[..., object]], Consumer]:
        """Call a function with the messages of a message queue, sync or async.

        ```python
        @app.consumer("parcels", concurrency=4)
        async def pack(parcel: Parcel) -> None: ...


        @app.consumer("clicks", batch=100)
        def count(clicks: list[Click]) -> None: ...
        ```

        When it returns, its messages are acknowledged; when it raises, they are given back, and due
        again after the pause that `retry` says, by default that of the app. How often, the queue
        says: `max_receives`, then a message is a dead letter. If a worker dies, its messages are
        due again when their visibility ends: a consumer may see a message more than once.

        With `batch` it takes a list of up to so many messages, of one group in a FIFO queue; for
        those that failed alone it may return exceptions, in a list with an entry for each message.
        A worker makes up to `concurrency` calls at once. While they run, their messages stay in
        flight, for `visibility` from each heartbeat on; by default the queue's.

        Raises ConfigurationError for a function or options that cannot work, and for a second
        consumer of the queue.
        """

        def define(fn: Callable[..., object]) -> Consumer:
            consumer = Consumer(
                fn,
                queue,
                name=name,
                batch=batch,
                concurrency=concurrency,
                visibility=visibility,
                retry=retry or self.registry.retry,
                timeout=timeout,
                app=self.registry,
            )
            known = self.consumers.get(consumer.queue)
            if known is not None:
                raise ConfigurationError(
                    f"{consumer}: {known} receives from queue {queue} already: messages would "
                    "come to one or the other by chance"
                )
            self.registry.consumers[consumer.queue] = consumer
            return consumer

        return define
