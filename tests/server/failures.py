"""What the tests of the failure table run: steps that wait at a gate, in workers to be killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from uuid import uuid4

from holdfast import App, Context, Retry, current_step
from holdfast.errors import StepFailed
from tests.cli.processes import until
from tests.crash.processes import processes
from tests.crash.worker import serve

PLACE = "HOLDFAST_TEST_PLACE"


@dataclass
class Plan:
    """The gate of an act, and how long the signal after it is waited for."""

    gate: str
    seconds: float


def make_app(*, complete: bool = True) -> App:
    """Return the app of these tests, or what is left of it when `order` was removed."""
    app = App("table")

    @app.step(retry=Retry(attempts=3, base="10ms", max="20ms"))
    async def act(gate: str) -> str:
        """Have an effect outside, wait at the gate, and fail if that is what stands there."""
        place, nonce = Path(os.environ[PLACE]), uuid4().hex
        line = {"gate": gate, "nonce": nonce, "pid": os.getpid(), "attempt": current_step().attempt}
        with (place / "ledger").open("a") as ledger:
            ledger.write(json.dumps(line) + "\n")
        while not (place / gate).exists():
            await asyncio.sleep(0.02)
        if text := (place / gate).read_text():
            raise ValueError(text)
        return nonce

    @app.workflow
    async def other(ctx: Context) -> None:
        """Be what a worker still has."""

    if not complete:
        return app

    @app.workflow
    async def order(ctx: Context, gates: list[str]) -> list[str]:
        """Act at each gate in turn."""
        return [await act(gate) for gate in gates]

    @app.workflow
    async def careful(ctx: Context, gate: str) -> str:
        """Continue where an act has failed for good."""
        try:
            return await act(gate)
        except StepFailed as failed:
            return f"without it: {failed.error.message}"

    @app.workflow
    async def clumsy(ctx: Context, gate: str) -> None:
        """Fail outside of a step."""
        await act(gate)
        raise LookupError("nobody thought of that")

    @app.workflow
    async def waiter(ctx: Context, plan: Plan) -> str:
        """Act, then wait for a signal, but not without end."""
        await act(plan.gate)
        try:
            async with asyncio.timeout(plan.seconds):
                return await ctx.wait_for_signal("paid", type=str)
        except TimeoutError:
            return "not paid in time"

    return app


def _work(url: str, place: str, complete: bool) -> None:
    os.environ[PLACE] = place
    with (Path(place) / "workers.log").open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    asyncio.run(serve(url, make_app(complete=complete)))


class Crew:
    """Workers that a test kills, and the gates at which their steps wait."""

    def __init__(self, url: str, place: Path) -> None:
        self.url, self.place = url, place
        self._workers: list[ForkServerProcess] = []

    def start(self, *, complete: bool = True) -> ForkServerProcess:
        """Start a worker; it is there as soon as it has signed on."""
        worker = processes.Process(
            target=_work, args=(self.url, str(self.place), complete), daemon=True
        )
        worker.start()
        self._workers.append(worker)
        return worker

    def kill(self, worker: ForkServerProcess) -> None:
        """Kill a worker with SIGKILL."""
        worker.kill()
        worker.join()
        self._workers.remove(worker)

    def freeze(self, worker: ForkServerProcess) -> None:
        """Stop a worker where it stands."""
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)

    def thaw(self, worker: ForkServerProcess) -> None:
        """Let a frozen worker continue."""
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGCONT)

    def end(self) -> None:
        """Leave no worker behind."""
        for worker in list(self._workers):
            self.kill(worker)

    def open(self, gate: str, error: str = "") -> None:
        """Let the steps at a gate pass, or fail with an error."""
        new = self.place / f"{gate}.new"
        new.write_text(error)
        new.rename(self.place / gate)

    def acts(self, gate: str) -> list[dict[str, object]]:
        """Return the executions that have reached a gate, in their order."""
        ledger = self.place / "ledger"
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        return [each for each in map(json.loads, lines) if each["gate"] == gate]

    def await_acts(self, gate: str, count: int = 1) -> list[dict[str, object]]:
        """Wait until so many executions have reached a gate."""
        until(lambda: len(self.acts(gate)) >= count, f"{count} executions at {gate}")
        return self.acts(gate)
