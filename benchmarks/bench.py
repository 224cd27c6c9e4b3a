"""The stage of a workload: an engine on a fresh database, and its worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine import Engine, WorkerSetting
from benchmarks.worker import WorkerProcess, several

PATIENCE_SECONDS = 300.0
WARM_UP = (5,) * 50  # arguments of the runs before a measurement
SETTLE_SECONDS = 0.3  # between an engine's last write of a phase and the next phase


@dataclass(frozen=True)
class Bench:
    """What a workload works with. `scale` shrinks the counts for a trial run."""

    engine: Engine
    log: Path
    scale: float = 1.0

    def count(self, full: int, least: int = 10) -> int:
        """Return a workload's count at this scale."""
        return max(least, round(full * self.scale))

    @contextmanager
    def worker(self, setting: WorkerSetting) -> Iterator[WorkerProcess]:
        """Run a worker of as many processes as the setting says; it is killed at the end."""
        command = several(self.engine.worker_command(setting), setting.processes)
        with WorkerProcess(command, self.log) as process:
            yield process

    async def warm_up(
        self, worker: WorkerProcess, workflow: str = "many", arguments: Sequence[float] = WARM_UP
    ) -> None:
        """Wait until the worker serves, and its code, plans and connections are warm."""
        await self.engine.start_many(workflow, arguments)
        await self.wait_until_ended(worker)

    async def wait_until_ended(self, worker: WorkerProcess) -> None:
        """Wait until no run is left unfinished."""

        async def ended() -> bool:
            return not await self.engine.unfinished()

        await wait_until(ended, worker, pause_seconds=0.005)

    async def wait_until_gated(self, worker: WorkerProcess, runs: int) -> None:
        """Wait until so many runs have done their steps and wait for their signal."""

        async def gated() -> bool:
            return await self.engine.at_gate() >= runs

        await wait_until(gated, worker, pause_seconds=0.005)


async def wait_until(
    reached: Callable[[], Awaitable[bool]], worker: WorkerProcess, *, pause_seconds: float
) -> None:
    """Ask until it is so; raise RuntimeError if the worker dies, TimeoutError if it takes ages."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    asked = 0
    while not await reached():
        asked += 1
        if asked % 100 == 0:
            worker.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not reached within {PATIENCE_SECONDS:.0f} s")
        await asyncio.sleep(pause_seconds)
