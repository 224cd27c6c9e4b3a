"""Generated from the asynchronous client by scripts/generate_sync.py."""

from __future__ import annotations

from holdfast.client.queues import Queues
from holdfast.sync.base import SyncGroup, blocking, each, making
from holdfast.sync.message import SyncMessage


class SyncQueues(SyncGroup[Queues], of=Queues):
    """Message queues: create them, send messages to them, receive and acknowledge messages."""

    create = blocking(Queues.create)
    """Create a message queue. Return False if one with the same settings exists."""
    update = blocking(Queues.update)
    """Change settings of a message queue; None leaves one as it is. Return False if none was."""
    get = blocking(Queues.get)
    """Return a message queue. Raises UnknownQueue."""
    delete = blocking(Queues.delete)
    """Delete a message queue with all that is in it. Return False if there is none."""
    list = blocking(Queues.list)
    """Return the message queues by name."""
    send = blocking(Queues.send)
    """Send a message. Return its id; for a `dedup_id` that is known, that of the first message."""
    send_many = blocking(Queues.send_many)
    """Send messages; return their ids in the order given. See `send`."""
    receive = making(each(SyncMessage), Queues.receive)
    """Receive up to `limit` messages, of a FIFO queue up to `per_group` of so many groups."""
    pop = making(each(SyncMessage), Queues.pop)
    """Receive messages and acknowledge them in one transaction: each comes at most once."""
    ack = blocking(Queues.ack)
    """Acknowledge messages: they are done. Return for each if it was in flight still."""
    nack = blocking(Queues.nack)
    """Give messages back: due again after a delay, or dead letters if received too often."""
    extend = blocking(Queues.extend)
    """Keep messages in flight for so long from now. Return for each if it was in flight still."""
    purge = blocking(Queues.purge)
    """Delete all messages that wait in a queue; what is in flight stays. Return how many."""
    redrive = blocking(Queues.redrive)
    """Move dead letters back to the queue that they come from. Return how many."""
    metrics = blocking(Queues.metrics)
    """Count what is due, delayed, in flight and dead in a queue, or in all; up to 10,000 each."""
    messages = blocking(Queues.messages)
    """Return messages without receiving them: first what waits, in the order of receives."""
    page = blocking(Queues.page)
    """Return a page of messages without receiving them, and the cursor of the next page."""
    kept = blocking(Queues.kept)
    """Return messages that were acknowledged and are kept, the newest first."""
    pause = blocking(Queues.pause)
    """Let nothing be taken from a queue. Return False if it was paused before."""
    resume = blocking(Queues.resume)
    """Let workers and receivers continue with a queue. Return False if it was not paused."""
    pauses = blocking(Queues.pauses)
    """Return the queues that are paused, each with the moment and the reason."""
