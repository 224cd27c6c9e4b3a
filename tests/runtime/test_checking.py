"""Code that is not deterministic is found by tests and in development, with its line."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import gc
import logging
import random
import secrets
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from datetime import date, datetime
from random import choice
from typing import Any

import pytest

from holdfast import App, Client, Context, Retry, RunHandle, StepFailed
from holdfast.errors import RunFailed
from holdfast.store.memory import MemoryStore
from holdfast.testing import Environment
from holdfast.worker import WorkerOptions
from tests.runtime.desk import eventually, working


@dataclasses.dataclass
class Order:
    id: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))


@dataclasses.dataclass
class Plain:
    id: uuid.UUID = dataclasses.field(default_factory=uuid.uuid4)


def helper() -> float:
    return time.time()


CALLS: dict[str, Callable[[], Any]] = {
    "uuid.uuid4()": lambda: str(uuid.uuid4()),
    "uuid.uuid1()": lambda: str(uuid.uuid1()),
    "datetime.now()": lambda: str(datetime.now(dt.UTC)),
    "datetime.utcnow()": lambda: str(datetime.utcnow()),
    "date.today()": lambda: str(date.today()),
    "random.random()": random.random,
    "random.choice()": lambda: choice([1, 2, 3]),
    "random.shuffle()": lambda: random.shuffle([1, 2]),
    "secrets.token_hex()": lambda: secrets.token_hex(4),
    "time.time()": helper,
    "time.time_ns()": lambda: time.time_ns(),
}
INDIRECT: dict[str, Callable[[], Any]] = {
    "in a dataclass of its own": lambda: Order().id,
    "in a dataclass": lambda: str(Plain().id),
}


def shop(draw: Callable[[], Any], *, wait: bool = False) -> tuple[App, Any]:
    app = App("shop")

    @app.step
    def charge(amount: object) -> object:
        return amount

    @app.workflow
    async def checkout(ctx: Context) -> object:
        drawn = draw()
        found = await charge(drawn)
        if wait:
            await asyncio.sleep(60)
        return found

    return app, checkout


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("name", [*CALLS, *INDIRECT])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_an_environment_refuses_clocks_and_chance_in_a_workflow(
    name: str, wait: bool
) -> None:
    draw = {**CALLS, **INDIRECT}[name]
    app, checkout = shop(draw, wait=wait)
    async with Environment(app) as env:
        with pytest.raises(AssertionError, match="is stuck") as found:
            await env.run(checkout)
    assert "test_checking.py:" in str(found.value)
    assert name in str(found.value) or name in INDIRECT
    ways = "; do it in a step" if name.startswith("secrets.") else ", or do it in a step"
    assert str(found.value).endswith(ways)


@pytest.mark.parametrize("wait", [True, False])
async def test_a_replay_finds_the_line_of_what_the_checks_do_not_see(wait: bool) -> None:
    """A counter outside of the run: what it gives is another value on each replay."""
    drawn: list[int] = []

    def draw() -> int:
        drawn.append(1)
        return len(drawn)

    app, checkout = shop(draw, wait=wait)
    async with Environment(app) as env:
        with pytest.raises(AssertionError, match="other arguments") as found:
            await env.run(checkout)
    assert "test_checking.py:" in str(found.value)
    assert "in checkout" in str(found.value)


async def test_another_branch_at_the_end_is_found() -> None:
    app, times = App("shop"), list[int]()

    @app.step
    def one() -> int:
        return 1

    @app.step
    def two() -> int:
        return 2

    @app.workflow
    async def checkout(ctx: Context) -> int:
        times.append(1)
        return await (one() if len(times) == 1 else two())

    async with Environment(app) as env:
        with pytest.raises(AssertionError, match=r"differs from what it has done.* one"):
            await env.run(checkout)


async def test_a_call_that_was_taken_out_under_a_run_is_not_said_to_differ() -> None:
    """The log of a run that is edited in development has calls of the code before."""
    store = MemoryStore()

    def version(*, weighs: bool) -> App:
        app = App("shop", careful=False)

        @app.step
        def weigh(box: object) -> None: ...

        @app.step
        def pack(box: object) -> None: ...

        @app.workflow
        async def order(ctx: Context) -> None:
            if weighs:
                await weigh("a box")
            await pack("a box")
            await ctx.wait_for_signal("packed")

        return app

    async with Client(store=store) as client:
        handle = await client.start("shop/order")
        async with working(version(weighs=True), store, check="warn"):
            await eventually(lambda: _is(handle, "waiting"))
        await handle.signal("packed")
        async with working(version(weighs=False), store, check="warn"):
            await eventually(lambda: _is(handle, "stuck", "completed"))
        assert (await handle.get()).state == "completed"


async def _is(handle: RunHandle[object], *states: str) -> bool:
    return (await handle.get()).state in states


async def test_without_replay_nothing_is_refused() -> None:
    app, checkout = shop(time.time, wait=True)
    async with Environment(app, replay=False) as env:
        assert await env.run(checkout) > 0


async def test_steps_libraries_and_own_sources_are_left_alone() -> None:
    app = App("shop")

    @app.step
    async def drawn(seed: int) -> float:
        await asyncio.sleep(0)
        return time.time() + random.random() + uuid.uuid4().int

    @app.step
    def drawn_in_a_thread(seed: int) -> str:
        return str(datetime.now(dt.UTC)) + secrets.token_hex(2)

    @app.workflow
    async def checkout(ctx: Context) -> list[object]:
        async with asyncio.timeout(60):
            await asyncio.gather(drawn(1), drawn_in_a_thread(2))
        ctx.log.warning("logging reads the clock")
        own = random.Random(7)
        return [
            own.random(),
            own.choice([1, 2]),
            str(ctx.now()),
            str(ctx.uuid()),
            ctx.random.random(),
        ]

    async with Environment(app) as env:
        assert (await env.run(checkout))[0] == random.Random(7).random()


@dataclasses.dataclass
class Stamped:
    name: str
    at: float = 0.0
    id: uuid.UUID = dataclasses.field(default_factory=uuid.uuid4)

    def __post_init__(self) -> None:
        if self.name == "cancelled":
            raise asyncio.CancelledError
        self.at = time.time()
        time.sleep(0)


@pytest.mark.parametrize("by_name", [True, False])
async def test_types_of_an_activitys_parameters_are_not_code_of_the_workflow(by_name: bool) -> None:
    """The call looks if its arguments fit them, and so makes values of them."""
    app = App("shop")

    @app.activity
    async def note(item: Stamped) -> str:
        return item.name

    noted: Any = note

    @app.workflow
    async def checkout(ctx: Context, reads: bool) -> object:
        given = {"name": "lamp"}
        found = await (ctx.activity("note", given) if by_name else noted(given))
        return [found, time.time()] if reads else found

    @app.workflow
    async def stop(ctx: Context) -> object:
        return await ctx.activity("note", {"name": "cancelled"}, retry=Retry(attempts=1))

    async with Environment(app) as env:
        assert await env.run(checkout, False) == "lamp"
        with pytest.raises(RunFailed, match="activity note failed"):
            await env.run(stop)
        with pytest.raises(AssertionError, match=r"calls time.time\(\) in a workflow"):
            await env.run(checkout, True)


async def test_a_run_that_fails_is_replayed_too_and_fails() -> None:
    app = App("shop")

    @app.workflow
    async def checkout(ctx: Context) -> None:
        raise ValueError("no")

    async with Environment(app) as env:
        with pytest.raises(RunFailed, match="no"):
            await env.run(checkout)


async def test_calls_that_were_never_awaited_are_dropped_without_a_warning() -> None:
    """A run is closed at each wait; what its code has made by then was never awaited."""
    app = App("shop")

    @app.step
    def charge(amount: int) -> int:
        return amount

    @app.workflow
    async def checkout(ctx: Context) -> list[int]:
        calls = [charge(1), charge(2)]
        await asyncio.sleep(60)
        return [await call for call in calls]

    async with Environment(app) as env:
        assert await env.run(checkout) == [1, 2]


LOCK, EVENT, QUEUE = asyncio.Lock(), asyncio.Event(), asyncio.Queue[int]()
SEMAPHORE, CONDITION = asyncio.Semaphore(2), asyncio.Condition()


@contextlib.contextmanager
def held_port() -> Any:
    """A port that nobody answers at: a connection to it is refused."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()


def connect() -> None:
    with held_port() as address, socket.socket() as caller, contextlib.suppress(OSError):
        caller.connect(address)


BLOCKING: dict[str, Callable[[], object]] = {
    "time.sleep()": lambda: time.sleep(0.001),
    "a look-up of a host": lambda: socket.getaddrinfo("127.0.0.1", 1),
    "a socket": connect,
    "a subprocess": lambda: subprocess.run(["true"], check=True),
}
SHARED: dict[str, Callable[[], Awaitable[object]]] = {
    "asyncio.Lock": LOCK.acquire,
    "asyncio.Event": EVENT.wait,
    "asyncio.Queue": QUEUE.get,
    "asyncio.Semaphore": SEMAPHORE.acquire,
    "asyncio.Condition": CONDITION.wait,
}


async def stuck(code: Callable[[Any], Awaitable[object]], **options: Any) -> str:
    """Run code as a workflow whose only step is given to it; return why it is stuck."""
    app, checkout = workflow_of(code, **options)
    async with Environment(app) as env:
        with pytest.raises(AssertionError, match="is stuck") as found:
            await env.run(checkout)
    return str(found.value)


def workflow_of(code: Callable[[Any], Awaitable[object]], **options: Any) -> tuple[App, Any]:
    app = App("shop", **options)

    @app.step
    async def charge(amount: int) -> int:
        return amount

    @app.workflow
    async def checkout(ctx: Context) -> object:
        return await code(charge)

    return app, checkout


@pytest.mark.parametrize("what", BLOCKING)
async def test_a_call_that_blocks_is_found_with_its_line(what: str) -> None:
    async def code(charge: Any) -> object:
        BLOCKING[what]()
        return await charge(1)

    found = await stuck(code)
    assert f"blocks on {what} in a workflow" in found
    assert "test_checking.py:" in found
    assert "do it in a step" in found or "use asyncio.sleep()" in found


async def test_code_that_blocks_in_another_way_is_stuck_as_on_a_worker() -> None:
    async def code(charge: Any) -> object:
        running: Any = asyncio.get_running_loop()
        began = time.monotonic()
        while running.broken is None and time.monotonic() < began + 30:
            threading.Event().wait(0.01)
        return await charge(1)

    found = await stuck(code, blocking_limit="100ms")
    assert "its code has held the worker for 0.1 s without an await that waits" in found
    assert "test_checking.py" in found


async def test_what_logging_does_is_not_said_to_block() -> None:
    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            time.sleep(0)

    logger, handler = logging.getLogger("shop.slow"), Slow()
    logger.addHandler(handler)

    async def code(charge: Any) -> object:
        logger.warning("slow")
        return await charge(1)

    app, checkout = workflow_of(code)
    async with Environment(app) as env:
        assert await env.run(checkout) == 1
    logger.removeHandler(handler)


@pytest.mark.parametrize("what", SHARED)
async def test_an_asyncio_object_of_a_module_is_found_with_its_line(what: str) -> None:
    async def code(charge: Any) -> object:
        await SHARED[what]()
        return await charge(1)

    found = await stuck(code)
    assert f"in code uses an {what} in a workflow that this run has not made" in found
    assert "test_checking.py:" in found
    assert "make it inside the workflow" in found


async def test_an_asyncio_object_that_an_earlier_execution_made_is_found() -> None:
    kept: list[asyncio.Lock] = []

    async def code(charge: Any) -> object:
        if not kept:
            kept.append(asyncio.Lock())
        await asyncio.sleep(60)
        async with kept[0]:
            return await charge(1)

    assert "asyncio.Lock in a workflow that this run has not made" in await stuck(code)


async def test_asyncio_objects_of_the_run_itself_are_left_alone() -> None:
    async def code(charge: Any) -> object:
        lock, event, queue = asyncio.Lock(), asyncio.Event(), asyncio.PriorityQueue[int]()
        semaphore, condition = asyncio.BoundedSemaphore(1), asyncio.Condition()

        async def one(number: int) -> None:
            async with lock, semaphore:
                await queue.put(await charge(number))
            async with condition:
                condition.notify_all()
            event.set()

        async with asyncio.TaskGroup() as group:
            for number in (3, 1, 2):
                group.create_task(one(number))
            await event.wait()
            async with condition:
                await condition.wait_for(lambda: queue.qsize() == 3)
        return [queue.get_nowait() for _ in range(3)]

    app, checkout = workflow_of(code)
    async with Environment(app) as env:
        assert await env.run(checkout) == [1, 2, 3]


async def test_a_step_may_use_a_lock_of_its_module() -> None:
    app = App("shop")
    lock = asyncio.Lock()

    @app.step
    async def charge(amount: int) -> int:
        async with lock:
            await asyncio.sleep(0)
            return amount

    @app.workflow
    async def checkout(ctx: Context) -> list[int]:
        return await asyncio.gather(charge(1), charge(2))

    async with Environment(app) as env:
        assert await env.run(checkout) == [1, 2]


async def _dropped(charge: Any) -> object:
    charge(1)
    return 1


async def _dropped_before_a_wait(charge: Any) -> object:
    charge(1)
    await asyncio.sleep(60)
    return 1


async def _returned(charge: Any) -> object:
    return charge(1)


async def _kept(charge: Any) -> object:
    kept_calls.append(charge(1))
    return 1


async def _compared(charge: Any) -> object:
    if charge(1):
        return await charge(2)
    return None


kept_calls: list[Any] = []


@pytest.mark.parametrize("code", [_dropped, _dropped_before_a_wait, _returned, _kept, _compared])
async def test_a_step_that_is_not_awaited_is_found_with_its_line(code: Any) -> None:
    found = await stuck(code)
    assert f"in {code.__name__} calls step charge and does not await it" in found
    assert "test_checking.py:" in found
    while kept_calls:
        kept_calls.pop().close()


async def _helper(ctx: Context | None = None) -> None: ...


async def paused(ctx: Context) -> None:
    asyncio.sleep(60)


async def approved(ctx: Context) -> None:
    asked = ctx.request_approval("Pay?")
    if asked:
        await ctx.sleep(1)


async def signalled(ctx: Context) -> None:
    ctx.wait_for_signal("paid")
    await asyncio.sleep(1)


async def helped(ctx: Context) -> None:
    _helper()


async def helped_with_a_context(ctx: Context) -> None:
    helping = [_helper(ctx)]
    await asyncio.sleep(len(helping))


@pytest.mark.parametrize(
    ("code", "called"),
    [
        (paused, "sleep"),
        (approved, "ctx.request_approval"),
        (signalled, "ctx.wait_for_signal"),
        (helped, "_helper"),
        (helped_with_a_context, "_helper"),
    ],
)
async def test_any_call_that_is_not_awaited_is_found(
    code: Callable[[Context], Coroutine[object, None, None]], called: str
) -> None:
    app = App("shop")
    workflow = app.workflow(code)
    async with Environment(app) as env:
        with pytest.raises(AssertionError, match=f"calls {called} and does not await it"):
            await env.run(workflow)


async def test_python_warns_at_the_line_of_a_step_that_forgets_an_await() -> None:
    app = App("shop")

    @app.step
    async def charge() -> None:
        _helper()

    @app.workflow
    async def code(ctx: Context) -> None:
        await charge()

    async with Environment(app) as env:
        with pytest.warns(RuntimeWarning, match="'_helper' was never awaited") as warned:
            await env.run(code)
    assert warned[0].filename == __file__


async def test_calls_of_closed_runs_are_not_said_to_be_forgotten(
    recwarn: pytest.WarningsRecorder,
) -> None:
    app = App("shop")

    @app.workflow
    async def code(ctx: Context) -> None:
        waits = [ctx.wait_for_signal("a"), _helper(ctx)]
        await asyncio.sleep(60)
        await asyncio.gather(*waits)

    async with Environment(app) as env:
        handle = await env.client.start(code)
        await env.advance(30)
        await handle.signal("a")
        await env.result(handle)
    gc.collect()
    assert not recwarn.list


async def test_an_error_of_code_that_forgot_an_await_comes_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def code(charge: Any) -> object:
        found = charge(1)
        return found + 1

    app, checkout = workflow_of(code)
    async with Environment(app) as env:
        with pytest.raises(RunFailed, match="coroutine"):
            await env.run(checkout)
    assert "in code calls step charge and does not await it" in caplog.text


@pytest.mark.parametrize("in_task", [False, True])
async def test_an_error_that_kept_code_from_awaiting_is_the_end_of_the_run(
    caplog: pytest.LogCaptureFixture, in_task: bool
) -> None:
    """Python drops the calls that are made already when an argument raises."""

    async def code(charge: Any) -> object:
        return await asyncio.gather(charge(1), charge(dict[str, int]()["price"]))

    async def part(charge: Any) -> object:
        return await asyncio.create_task(code(charge))

    app, checkout = workflow_of(part if in_task else code)
    async with Environment(app) as env:
        with pytest.raises(RunFailed, match="KeyError: 'price'"):
            await env.run(checkout)
    assert "in code calls step charge and does not await it" in caplog.text


async def test_a_cancel_that_kept_code_from_awaiting_comes_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def code(charge: Any) -> object:
        async def later() -> object:
            return await asyncio.gather(charge(1), charge(await asyncio.sleep(60, 3)))

        task = asyncio.create_task(later())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        return await charge(2)

    app, checkout = workflow_of(code)
    async with Environment(app) as env:
        assert await env.run(checkout) == 2
    assert "in later calls step charge and does not await it" in caplog.text


async def test_a_step_that_is_cancelled_before_it_begins_is_not_said_to_be_forgotten() -> None:
    async def code(charge: Any) -> object:
        task = asyncio.create_task(charge(1))
        task.cancel()
        await asyncio.wait([task])
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(charge(2), 0)
        unused = charge(3)
        unused.close()
        return await charge(4)

    app, checkout = workflow_of(code)
    async with Environment(app) as env:
        assert await env.run(checkout) == 4


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_an_exit_in_a_task_beside_the_code_fails_the_run(kind: type[BaseException]) -> None:
    """The run ends, although its own code still waits."""
    app = App("check")

    @app.workflow
    async def code(ctx: Context) -> None:
        async def leave() -> None:
            raise kind(3)

        task = asyncio.create_task(leave())
        await ctx.wait_for_signal("never")
        await task

    async with Environment(app) as env:
        with pytest.raises(RunFailed, match=kind.__name__):
            await env.run(code)


@pytest.mark.parametrize("code", [_dropped, _dropped_before_a_wait])
async def test_a_worker_that_checks_warns_of_a_step_that_is_not_awaited(
    code: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app, checkout = workflow_of(code)
    store = MemoryStore()
    async with working(app, store, check="warn"), Client(store=store) as client:
        await client.start(checkout)
        await eventually(lambda: "calls step charge and does not await it" in caplog.text)


async def test_a_worker_that_checks_only_warns(caplog: pytest.LogCaptureFixture) -> None:
    """As `holdfast dev` has it."""
    app, checkout = shop(CALLS["time.time()"])
    store = MemoryStore()
    async with working(app, store, check="warn"):
        from holdfast import Client

        async with Client(store=store) as client:
            await client.start(checkout)
            await eventually(lambda: "calls time.time() in a workflow" in caplog.text)


def test_workers_do_not_check_unless_asked() -> None:
    assert WorkerOptions().check == "no"


FOREIGN: dict[str, Callable[[], Any]] = {
    "a future": lambda: asyncio.get_running_loop().create_future(),
    "a task": lambda: asyncio.create_task(asyncio.sleep(3600)),
    "a gather": lambda: asyncio.gather(asyncio.get_running_loop().create_future()),
}


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("what", FOREIGN)
async def test_a_wait_for_what_is_of_another_loop_names_its_line(what: str, replay: bool) -> None:
    foreign = FOREIGN[what]()

    async def code(charge: Any) -> object:
        await charge(1)
        return await foreign

    app, checkout = workflow_of(code)
    async with Environment(app, replay=replay) as env:
        with pytest.raises(AssertionError, match="is stuck") as found:
            await env.run(checkout)
    assert "in code: a wait for a future of another event loop" in str(found.value)
    assert "test_checking.py:" in str(found.value)
    assert "make it inside the workflow" in str(found.value)
    await asyncio.wait([asyncio.ensure_future(foreign)], timeout=0)
    foreign.cancel()


async def test_without_checks_a_lock_that_runs_share_makes_a_run_stuck_with_its_line() -> None:
    """In a worker: the first run takes the lock and waits, the next ones find it taken."""
    lock = asyncio.Lock()
    app = App("shop")

    @app.workflow
    async def checkout(ctx: Context) -> None:
        async with lock:
            await ctx.wait_for_signal("paid")

    @app.workflow
    async def other(ctx: Context) -> None:
        async with lock:
            pass

    store = MemoryStore()
    async with working(app, store), Client(store=store, app=app) as client:
        first = await client.start(checkout)
        await eventually(lambda: _is(first, "waiting"))
        second = await client.start(other)
        await eventually(lambda: _is(second, "stuck"))
        third = await client.start(other)
        await eventually(lambda: _is(third, "stuck"))
        reasons = [(await each.get()).record.wait.stuck or "" for each in (second, third)]  # type: ignore[union-attr]
    assert "waits for nothing durable at " in reasons[0]
    assert "other runs use too" in reasons[0]
    assert "in other: a wait for an asyncio.Lock of another event loop" in reasons[1]
    assert all("test_checking.py:" in reason for reason in reasons)


async def test_a_step_that_uses_what_another_loop_has_used_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a lock or a pool of connections that a module or an earlier test has made."""
    kept: list[Any] = []

    async def use() -> None:
        lock = asyncio.Lock()
        async with lock:
            waiting = asyncio.create_task(lock.acquire())  # it must wait, which binds the lock
            await asyncio.sleep(0)
            waiting.cancel()
        kept.append((lock, asyncio.get_running_loop().create_future()))

    await asyncio.to_thread(asyncio.run, use())
    lock, future = kept[0]
    app = App("shop", retry=Retry.NEVER)

    @app.step
    async def locks() -> None:
        await lock.acquire()
        await lock.acquire()

    @app.step
    async def waits() -> None:
        await future

    @app.workflow
    async def checkout(ctx: Context) -> None:
        with contextlib.suppress(StepFailed):
            await locks()
        await waits()

    async with Environment(app) as env:
        with pytest.raises(RunFailed, match=r"on another event loop.*app.lifespan"):
            await env.run(checkout)
    assert "Lock" in caplog.text


async def test_a_client_inside_a_workflow_is_refused() -> None:
    clients: list[Client] = []

    async def code(charge: Any) -> object:
        return await clients[0].start("shop/checkout")

    app, checkout = workflow_of(code)
    async with Environment(app) as env:
        clients.append(env.client)
        with pytest.raises(AssertionError, match="in code: a call of a client inside a workflow"):
            await env.run(checkout)


@pytest.mark.parametrize("kind", ["step", "activity", "workflow", "flow"])
async def test_a_definition_inside_a_workflow_is_refused(kind: str) -> None:
    async def code(charge: Any) -> object:
        async def inner(ctx: Any = None) -> int:
            return 1

        if kind == "flow":
            app.flow("inner")
        else:
            getattr(app, kind)(inner)
        return await charge(1)

    app, checkout = workflow_of(code)
    async with Environment(app, replay=False) as env:
        with pytest.raises(AssertionError, match=r"in code: the definition of .*inner") as found:
            await env.run(checkout)
    assert "define it in a module" in str(found.value)
    assert not [each for each in app.handlers() if "inner" in each]


async def test_threads_in_a_workflow_are_refused_with_their_line() -> None:
    async def code(charge: Any) -> object:
        return await asyncio.get_running_loop().run_in_executor(None, time.time)

    found = await stuck(code)
    assert "test_checking.py:" in found
    assert "in code: loop.run_in_executor() inside a workflow" in found


async def test_without_checks_python_warns_of_a_step_that_is_not_awaited() -> None:
    app, checkout = workflow_of(_dropped)
    async with Environment(app, replay=False) as env:
        with pytest.warns(RuntimeWarning, match="'the call of a step in a workflow' was never"):
            await env.run(checkout)
