"""Child runs: started by a run, awaited by it or let go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast
from uuid import UUID

import msgspec

from holdfast.codec import Decode, decoder, describe, encode, fingerprint
from holdfast.definitions.workflows import Workflow
from holdfast.durations import Duration, seconds
from holdfast.errors import (
    ChildFailed,
    ConfigurationError,
    RunCancelled,
    RunError,
    RunTerminated,
    RunTimedOut,
    UnknownWorkflow,
)
from holdfast.ids import child_run_id, keyed_run_id
from holdfast.names import check_queue_name, check_signal_name, check_workflow_name
from holdfast.runtime.code.orders import CHILD, SIGNAL, Order
from holdfast.runtime.log import order_details
from holdfast.runtime.log.details import CHILD_COMPLETED
from holdfast.runtime.log.order_details import ParentClose
from holdfast.runtime.loop.order_calls import OrderCall
from holdfast.runtime.loop.tasks import Evicted
from holdfast.texts import check_reason
from holdfast.types import DEFAULT_PRIORITY, DEFAULT_QUEUE, PRIORITIES, Event, Value

if TYPE_CHECKING:
    from holdfast.runtime.code.instance import Instance

T_co = TypeVar("T_co", covariant=True)

_RETENTION: Final = seconds("30d")
_HOW_ENDED: Final[dict[str, Callable[[UUID], RunError]]] = {
    "cancelled": RunCancelled,
    "terminated": RunTerminated,
    "timed_out": RunTimedOut,
}


class ChildOptions(Value, frozen=True, kw_only=True):
    """How a child is started; None stands for what its workflow says."""

    parent_close: ParentClose
    key: str | None = None
    queue: str | None = None
    priority: int | None = None
    version: int | None = None
    timeout: Duration | None = None
    tags: tuple[str, ...] = ()


_AWAITED: Final = ChildOptions(parent_close="cancel")


class ChildHandle(Generic[T_co]):
    """A child run that was started and let go."""

    __slots__ = ("_instance", "_order", "_read")

    def __init__(self, instance: Instance, order: Order, read: Callable[[Event], object]) -> None:
        self._instance, self._order, self._read = instance, order, read

    def __repr__(self) -> str:
        return f"<ChildHandle {self.run_id}>"

    @property
    def run_id(self) -> UUID:
        """The child's id."""
        assert self._order.run_id is not None, "a child's order names its run"
        return self._order.run_id

    async def result(self) -> T_co:
        """Wait for the child's end, and return its output.

        Raises ChildFailed where it did not complete. Cancelling the wait leaves the child alone.
        """
        event = await self._instance.orders.end_of(self._order, withdraw=False)
        return cast("T_co", self._read(event))

    def signal(self, name: str, payload: object = None) -> None:
        """Send a message to the child, with this run's next commit.

        Raises InvalidName for a name outside `[a-zA-Z0-9._-]{1,128}`, PayloadError for a payload
        that cannot be stored.
        """
        send_signal(self._instance, self.run_id, name, payload)

    def cancel(self, reason: str | None = None) -> None:
        """Ask the child to stop, with this run's next commit; nothing where it has ended.

        Raises InvalidInput for a reason that cannot be stored.
        """
        self._instance.orders.cancel(self._order, check_reason(reason))


def call_workflow(
    instance: Instance,
    workflow: Workflow[Any, object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> OrderCall:
    """Start a child run as a plain call of its workflow asks for it."""
    if len(args) > 1 or kwargs:
        raise TypeError(f"workflow {workflow.name} takes one input at most, by its place")
    return call_child(instance, workflow, workflow.name, args[0] if args else None, _AWAITED)


def call_child(
    instance: Instance,
    workflow: Workflow[Any, object] | str,
    leaf: str,
    input: object,
    options: ChildOptions,
    decode: Decode | None = None,
) -> OrderCall:
    """Start a child run; cancelling who awaits it cancels the child."""
    order, read = _start(instance, workflow, leaf, input, options, decode)
    return OrderCall(instance.orders, order, read, instance.loop.next_hash())


def start_child(
    instance: Instance,
    workflow: Workflow[Any, object] | str,
    leaf: str,
    input: object,
    options: ChildOptions,
    decode: Decode | None = None,
) -> ChildHandle[object]:
    """Start a child run and let it go."""
    order, read = _start(instance, workflow, leaf, input, options, decode)
    return ChildHandle(instance, order, read)


def _start(
    instance: Instance,
    workflow: Workflow[Any, object] | str,
    leaf: str,
    input: object,
    options: ChildOptions,
    decode: Decode | None,
) -> tuple[Order, Callable[[Event], object]]:
    loop, orders = instance.loop, instance.orders
    if loop.closing:
        raise Evicted
    known = _known(instance, workflow, options.version)
    name = workflow.name if isinstance(workflow, Workflow) else check_workflow_name(workflow)
    text = known.encode_input(input) if known else encode(input)
    key = loop.scope().key(leaf)
    run_id = _child_id(instance, name, key, options.key)
    order = orders.children.get(run_id)
    if order is None:
        order = Order(CHILD, key, name, fingerprint(text), run_id)
        started = _started(order, known, text, options)
        orders.place(order, lambda: order_details.write(started))
        if options.key is not None:
            orders.children[run_id] = order
    if decode is None:
        decode = known.decode_output if known else decoder(object)
    return order, _reader(order, decode)


def _known(
    instance: Instance, workflow: Workflow[Any, object] | str, version: int | None
) -> Workflow[Any, object] | None:
    """Return the workflow's definition, None where it lives in another program."""
    registry = instance.workflow.registry
    if isinstance(workflow, Workflow):
        if version in (None, workflow.version):
            return workflow
        workflow = workflow.name
    try:
        return registry.latest(workflow) if version is None else registry.find(workflow, version)
    except UnknownWorkflow:
        return None


def _started(
    order: Order,
    known: Workflow[Any, object] | None,
    text: str,
    options: ChildOptions,
) -> order_details.ChildStarted:
    """Write down a child to be started, and check its options."""
    queue = options.queue or (known.queue if known else DEFAULT_QUEUE)
    priority = options.priority
    if priority is None:
        priority = known.priority if known else DEFAULT_PRIORITY
    if priority not in PRIORITIES:
        raise ConfigurationError(f"child {order.name}: priority must be 0 (first) to 4")
    version = options.version
    if version is None:
        version = known.version if known else 1
    if version < 1:
        raise ConfigurationError(f"child {order.name}: a version is 1 or more, not {version}")
    timeout = known.timeout_seconds if known else None
    assert order.run_id is not None, "a child's order names its run"
    return order_details.ChildStarted(
        workflow_name=order.name,
        version=version,
        args=order.args or 0,
        child_run_id=order.run_id,
        input=msgspec.Raw(text),
        queue=check_queue_name(queue),
        priority=priority,
        key=options.key if options.key and order.run_id.bytes[0] == 0xFF else None,
        parent_close=options.parent_close,
        timeout=timeout if options.timeout is None else seconds(options.timeout),
        retention=known.retention_seconds if known else _RETENTION,
        tags=options.tags,
    )


def _reader(order: Order, decode: Decode) -> Callable[[Event], object]:
    def read(event: Event) -> object:
        text = event.details or ""
        if event.type == CHILD_COMPLETED:
            return decode(order_details.read_child_completed(text).output)
        failed = order_details.read_child_failed(text)
        error = failed.error
        if error is None:
            how = _HOW_ENDED.get(failed.status, RunTerminated)
            error = describe(how(failed.child_run_id))
        raise ChildFailed(order.key, error, failed.status, failed.child_run_id)

    return read


def _child_id(instance: Instance, name: str, call: str, key: str | None) -> UUID:
    """Return the id of a child. A fork has children of its own, also where they have keys.

    Those of its origin are the origin's: what failed there could not be tried again.
    """
    parent = instance.info.run_id
    if key is None:
        return child_run_id(parent, call)
    if instance.seed != parent:
        return child_run_id(parent, f"{name}\0{key}")
    return keyed_run_id(name, key)


def send_signal(instance: Instance, run_id: UUID, name: str, payload: object) -> None:
    """Order a message to another run, delivered once."""
    loop = instance.loop
    check_signal_name(name)
    text = encode(payload)
    order = Order(SIGNAL, loop.scope().key("signal"), name)
    sent = order_details.SignalSent(
        run_id, name, msgspec.Raw(text), f"{instance.info.run_id}/{order.key}"
    )
    instance.orders.place(order, lambda: order_details.write(sent))
