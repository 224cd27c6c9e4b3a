"""`client.queues`: pause and resume queues."""

from __future__ import annotations

from holdfast.client.control import list_pauses, set_pause
from holdfast.client.session import Session
from holdfast.names import check_queue_name
from holdfast.types import Pause


class Queues:
    """The queues that workers take runs and activities from."""

    def __init__(self, session: Session) -> None:
        """Make the group over a client's session."""
        self._session = session

    async def pause(self, name: str, reason: str | None = None) -> bool:
        """Let no worker begin anything of a queue. Return False if it was paused before.

        What runs already is not disturbed. The pause also holds for workers that start later.

        ```python
        await client.queues.pause("mail", reason="the mail server is down")
        ```
        """
        return await set_pause(self._session, "queue", check_queue_name(name), True, reason)

    async def resume(self, name: str) -> bool:
        """Let workers continue with a queue. Return False if it was not paused.

        ```python
        await client.queues.resume("mail")
        ```
        """
        return await set_pause(self._session, "queue", check_queue_name(name), False)

    async def pauses(self) -> list[Pause]:
        """Return the queues that are paused, each with the moment and the reason.

        ```python
        print([pause.name for pause in await client.queues.pauses()])
        ```
        """
        return await list_pauses(self._session, "queue")
