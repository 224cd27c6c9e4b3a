"""Operations that read flows."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.errors import UnknownFlow
from holdfast.server.api.filters import OfWorkflow
from holdfast.server.operations import Call, Nothing, Operation
from holdfast.types import FlowShape
from holdfast.values.composing import shaped


class FlowHead(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a flow, and how many runs of it have not ended."""

    name: str
    version: int
    steps: int
    from_code: bool
    created_at: datetime
    open_runs: int


class FlowList(msgspec.Struct, frozen=True):
    """Every version of every flow."""

    flows: list[FlowHead]


class FlowQuery(OfWorkflow, frozen=True):
    """Which version, by default the newest."""

    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


async def list_flows(call: Call[Nothing, None]) -> FlowList:
    """List every version of every flow."""
    return FlowList([shaped(FlowHead, each) for each in await call.site.reader.flows.list()])


async def get_flow(call: Call[FlowQuery, None]) -> FlowShape:
    """Return the steps of a flow, each after those that it depends on."""
    return await call.site.reader.flows.get(call.full_name, call.query.version)


OPERATIONS: Final = (
    Operation("GET /v1/flows", "read", list_flows),
    Operation("GET /v1/flows/{name}", "read", get_flow, problems=(UnknownFlow,)),
)
