"""Errors as HTTP answers: `application/problem+json` of RFC 9457, one row for each class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple
from uuid import uuid4

import msgspec
from starlette.responses import Response

from holdfast import errors
from holdfast.errors import HoldfastError
from holdfast.store.port.shards import MayBeAway, ShardAway
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.server")

_MEDIA_TYPE: Final = "application/problem+json"


class Kind(NamedTuple):
    """A kind of problem: its status, the end of its `type`, and its title."""

    status: int
    slug: str
    title: str


KINDS: Final[dict[type[HoldfastError], Kind]] = {
    errors.RunNotFound: Kind(404, "run-not-found", "There is no such run"),
    errors.UnknownWorkflow: Kind(404, "unknown-workflow", "There is no such workflow"),
    errors.UnknownFlow: Kind(404, "unknown-flow", "There is no such flow"),
    errors.UnknownBuild: Kind(404, "unknown-build", "There is no such build"),
    errors.UnknownSchedule: Kind(404, "unknown-schedule", "There is no such schedule"),
    errors.ApprovalNotFound: Kind(404, "approval-not-found", "There is no such approval"),
    errors.TokenUnknown: Kind(410, "token-unknown", "The token is not one of an open attempt"),
    errors.RunEnded: Kind(409, "run-ended", "The run has ended"),
    errors.RunExists: Kind(409, "run-exists", "Another run has this id or key"),
    errors.RunActive: Kind(409, "run-active", "A run with the same singleton key is active"),
    errors.ForkRefused: Kind(409, "fork-refused", "The run cannot be forked or retried so"),
    errors.RescheduleRefused: Kind(409, "reschedule-refused", "The run cannot be changed so now"),
    errors.ApprovalDecided: Kind(409, "approval-decided", "Another decision was first"),
    errors.ApprovalClosed: Kind(409, "approval-closed", "The run does not wait for it any more"),
    errors.WebhookNotFound: Kind(404, "webhook-not-found", "There is no such webhook"),
    errors.WebhookClosed: Kind(410, "webhook-closed", "The run takes no POST any more"),
    errors.SignatureInvalid: Kind(403, "signature", "The signature is missing or wrong"),
    errors.WebhookSecretMissing: Kind(503, "secret", "The signature cannot be checked now"),
    errors.UpdateRejected: Kind(409, "update-rejected", "The run refused the update"),
    errors.UpdateFailed: Kind(409, "update-failed", "The run failed to carry out the update"),
    errors.ScheduleExists: Kind(409, "schedule-exists", "There is a schedule of this name"),
    errors.ScheduleChanged: Kind(409, "schedule-changed", "Others changed the schedule meanwhile"),
    errors.FlowInUse: Kind(409, "flow-in-use", "Runs of the flow have not ended"),
    errors.UnknownQueue: Kind(404, "unknown-queue", "There is no such message queue"),
    errors.QueueExists: Kind(409, "queue-exists", "The message queue has other settings"),
    errors.QueueInUse: Kind(409, "queue-in-use", "The message queue is needed by another"),
    errors.MessageNotFound: Kind(404, "message-not-found", "There is no such message"),
    errors.MessageInFlight: Kind(409, "message-in-flight", "A receiver has the message"),
    errors.AmbiguousWorkflow: Kind(422, "ambiguous-workflow", "Several apps have this workflow"),
    errors.PayloadLocked: Kind(422, "payload-locked", "A value cannot be read without its key"),
    errors.PayloadError: Kind(422, "payload", "A value cannot be stored"),
    errors.InvalidInput: Kind(422, "invalid-input", "A value does not fit"),
    errors.ConfigurationError: Kind(422, "configuration", "An option cannot work"),
    errors.StartThrottled: Kind(429, "start-throttled", "The workflow was started too often"),
    errors.QueryTooSlow: Kind(503, "query-too-slow", "The list takes too long: narrow it"),
    errors.TransientDatabaseError: Kind(503, "try-again", "The database gave up: try again"),
    errors.DatabaseError: Kind(503, "database", "The database cannot be used now"),
    errors.ObjectsUnavailable: Kind(503, "archive", "The object store cannot be used now"),
}

# Errors whose texts may name hosts, roles or URLs: the log has them, callers do not.
_NOT_TOLD: Final = (
    errors.DatabaseUnavailable,
    errors.ObjectsUnavailable,
    errors.WebhookSecretMissing,
)

# Facts of an error that its problem has as members of their own.
_MEMBERS: Final = ("run_id", "key", "approved", "by", "error", "until", "apps", "reason")


class Problem(Exception):
    """A request that is refused, and the answer that says so."""

    def __init__(
        self,
        status: int,
        slug: str,
        detail: str,
        *,
        title: str | None = None,
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.slug, self.detail = status, slug, detail
        self.title = title or slug.replace("-", " ").capitalize()
        self.headers, self.members = dict(headers or {}), dict(members or {})
        if status == 503:
            self.headers.setdefault("Retry-After", "1")

    def response(self) -> Response:
        """Return the answer."""
        content = {
            "type": f"urn:holdfast:problem:{self.slug}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            **self.members,
        }
        body = msgspec.json.encode(content)
        return Response(body, self.status, headers=self.headers, media_type=_MEDIA_TYPE)


def kind_of(error: type[HoldfastError]) -> Kind | None:
    """Return the row for a class, or for the nearest one that it derives from."""
    return next((KINDS[each] for each in error.__mro__ if each in KINDS), None)


def problem_of(error: Exception) -> Problem:
    """Return the answer to an error. An unexpected one is logged, and gets a number."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RecursionError):
        return Problem(400, "nested", "the JSON is nested too deeply")
    kind = kind_of(type(error)) if isinstance(error, HoldfastError) else None
    if kind is None:
        return unexpected(error)
    detail = str(error)
    members = {name: getattr(error, name) for name in _MEMBERS if hasattr(error, name)}
    if isinstance(error, _NOT_TOLD) and not isinstance(error, MayBeAway):
        logger.warning("%s", error)
        members = {}
        lost = (
            ", but it may have carried out the call" if getattr(error, "unanswered", False) else ""
        )
        what = kind.title
        if isinstance(error, ShardAway):
            what = f"shard {', '.join(map(str, sorted(error.shards)))} is away"
        detail = f"{what}: try again{lost}; the server's log has the reason"
    members = {name: value for name, value in members.items() if value is not None}
    headers: dict[str, str] = {}
    if isinstance(error, errors.StartThrottled):
        rest = (error.until - datetime.now(UTC)).total_seconds()
        headers["Retry-After"] = str(max(1, math.ceil(rest)))
    return Problem(
        kind.status, kind.slug, detail, title=kind.title, headers=headers, members=members
    )


def unexpected(error: Exception) -> Problem:
    """Log an error that nobody foresaw, and return an answer that has its number only."""
    number = uuid4().hex[:12]
    logger.error("unexpected error %s", number, exc_info=error)
    return Problem(500, "unexpected", f"the server's log has it as {number}", title="Server error")
