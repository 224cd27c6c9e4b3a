"""Operations that send messages to runs: signals, and updates, which are answered."""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

import msgspec

from holdfast.client.replies import read_reply
from holdfast.errors import ResultTimeout, RunEnded, UpdateFailed, UpdateRejected
from holdfast.server.api.fields import Changed, Key, Seconds
from holdfast.server.operations import Call, ForAgents, Nothing, Operation, Query, Reply
from holdfast.server.waiting import place, within


class UpdateQuery(Query, frozen=True):
    """How long to wait for the answer."""

    wait: Seconds = 10.0


class AnswerQuery(Query, frozen=True):
    """The id of the update."""

    id: Key


class Answer(msgspec.Struct, frozen=True):
    """What an update's handler returned."""

    update_id: str
    result: Any


class Unanswered(msgspec.Struct, frozen=True):
    """An update that has no answer yet; ask again with its id."""

    update_id: str


async def send_signal(call: Call[Nothing, Any]) -> Changed:
    """Send a run a signal; the body is its payload.

    With an Idempotency-Key it is delivered once: `changed` is false if it was sent before.
    """
    sent = await call.site.client.signal(
        call.run_id, call.path["event"], call.body, call.idempotency_key
    )
    return Changed(sent)


async def send_update(call: Call[UpdateQuery, Any]) -> Reply:
    """Ask a run to change something, and return its answer; the body is the payload.

    202 means that the run has it and has not answered yet: send it again with its `update_id` as
    the Idempotency-Key, or ask for the answer.
    """
    update_id = call.idempotency_key or str(uuid4())

    async def ask(timeout: float | None) -> Answer | None:
        name, client = call.path["update"], call.site.client
        sent = client.update(call.run_id, name, call.body, update_id=update_id, timeout=timeout)
        try:
            return Answer(update_id, await sent)
        except ResultTimeout:
            return None

    with place(call):
        answer = await within(call, ask(None), call.query.wait)
        if answer is None:  # the time may have been up before it was sent
            answer = await ask(0)
    return Reply(Unanswered(update_id), 202) if answer is None else Reply(answer)


async def get_update(call: Call[AnswerQuery, None]) -> Reply:
    """Return the answer to an update that was sent before; 202 if there is none yet."""
    event = await call.site.store.find_reply(call.run_id, call.query.id)
    if event is None:
        run = (await call.site.reader.runs.get(call.run_id)).record
        if run.status != "running":
            raise RunEnded(run.run_id, run.status)
        return Reply(Unanswered(call.query.id), 202)
    return Reply(Answer(call.query.id, msgspec.Raw(read_reply(call.run_id, event).encode())))


OPERATIONS: Final = (
    Operation(
        "POST /v1/runs/{run}/signals/{event}",
        "write",
        send_signal,
        body_required=False,
        problems=(RunEnded,),
        nested=True,
        keyed=True,
        tool=ForAgents(name="signal", about="Send a run a signal."),
    ),
    Operation(
        "POST /v1/runs/{run}/updates/{update}",
        "write",
        send_update,
        body_required=False,
        answers=(Answer, Unanswered),
        statuses=(200, 202),
        problems=(RunEnded, UpdateRejected, UpdateFailed),
        keyed=True,
    ),
    Operation(
        "GET /v1/runs/{run}/updates/{update}",
        "read",
        get_update,
        answers=(Answer, Unanswered),
        statuses=(200, 202),
        problems=(RunEnded, UpdateRejected, UpdateFailed),
    ),
)
