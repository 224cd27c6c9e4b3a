"""`app.message_queue(…)`, `app.consumer(…)`: message queues, and what takes messages from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from holdfast.definitions.consumers import Consumer
from holdfast.definitions.message_queues import settings_of
from holdfast.definitions.workflows import Registry
from holdfast.errors import ConfigurationError
from holdfast.retry import Retry
from holdfast.types import QueueSettings
from holdfast.values.durations import Duration


class Consuming:
    """The message queues and the consumers of an app."""

    registry: Registry

    @property
    def consumers(self) -> Mapping[str, Consumer]:
        """All consumers by the queue that they receive from."""
        return MappingProxyType(self.registry.consumers)

    @property
    def message_queues(self) -> Mapping[str, QueueSettings]:
        """The message queues that the app declares, by name; its workers create them."""
        return MappingProxyType(self.registry.message_queues)

    def message_queue(
        self,
        name: str,
        *,
        fifo: bool = False,
        priorities: bool = False,
        filters: bool = False,
        visibility: Duration = 30.0,
        max_receives: int | None = None,
        dead_letters: str | None = None,
        deduplication: Duration = 300.0,
        keep: Duration | None = None,
    ) -> None:
        """Declare a message queue: workers of the app create it when they start, if there is none.

        ```python
        app.message_queue("parcels", visibility="1m", max_receives=5)
        ```

        The options are those of `client.queues.create`. A queue that exists stays as it is, and so
        does one that the code does not declare any more: if its settings differ, workers say so in
        their log. Raises ConfigurationError for a queue that is declared twice, InvalidName.
        """
        kind = fifo, priorities, filters
        new = settings_of(name, kind, visibility, max_receives, dead_letters, deduplication, keep)
        if name in self.registry.message_queues:
            raise ConfigurationError(f"message queue {name} is declared twice")
        self.registry.message_queues[name] = new

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
                retry=self.registry.retry if retry is None else retry,
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
