"""The demo: a shop's order is fulfilled although its worker is killed midway."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from holdfast.cli import exits
from holdfast.cli.connecting import Link
from holdfast.cli.process.supervising import Child, is_signed_on, reap_child
from holdfast.cli.render.runs import summary
from holdfast.cli.render.timeline import timeline
from holdfast.cli.settings import Settings
from holdfast.client.handle import RunHandle
from holdfast.demo.app import LEDGER_VARIABLE, Order
from holdfast.demo.ledger import Ledger
from holdfast.demo.proof import Proof, prove
from holdfast.errors import HoldfastError
from holdfast.insight.timeline import read_spans
from holdfast.insight.wording import several
from holdfast.types import RunRecord

if TYPE_CHECKING:
    from rich.table import Table


_POLL_SECONDS = 0.02
_PATIENCE_SECONDS = 30.0
_ITEMS = ["lamp", "chair", "clock", "kettle"]


class DemoFailed(HoldfastError):
    """Something in the demo did not happen in time."""


class Demonstration:
    """Runs the demo in a directory of its own, and prints what happens."""

    def __init__(self, settings: Settings, link: Link, scratch: Path, console: Console) -> None:
        self._settings, self._link, self._console = settings, link, console
        self._ledger = Ledger(scratch / "ledger.jsonl")
        self._log_path = scratch / "workers.log"
        self._queue = f"demo-{os.getpid()}"  # no other demo on this database may serve it
        self._began = time.monotonic()

    async def run(self) -> int:
        """Run the demo; return the exit code."""
        with self._log_path.open("ab") as output:
            try:
                run = await self._play(output)
            except BaseException:
                self._console.print(Text(self._log_path.read_text()[-4000:], "dim"))
                raise
        return await self._conclude(run)

    async def _play(self, output: IO[bytes]) -> RunRecord:
        async with self._worker(output) as first:
            self._tell(f"worker process {first.pid} runs the demo's app")
            handle: RunHandle[object] = await self._link.client.start(
                "fulfil", Order(number=7, items=_ITEMS), queue=self._queue, tags=["demo"]
            )
            self._tell(f"run {handle.run_id} of workflow fulfil is started")
            packed = await self._until(self._in_the_middle_of_packing, "the parcels are packed")
            first.signal(signal.SIGKILL)
            await first.ended()
            self._tell(f"SIGKILL: the worker dies while it packs {packed}", "bold red")
        await reap_child(self._link.store, first)
        async with self._worker(output) as second:
            self._tell(f"worker process {second.pid} takes the run over")
            await self._until(lambda: self._waits_for_courier(handle), "the run waits for a signal")
            self._tell("the timer has fired; the run waits for the signal picked-up: it is sent")
            await handle.signal("picked-up", {"courier": "Ada"})
            ended = await self._link.client.runs.wait(handle.run_id, timeout=_PATIENCE_SECONDS)
            return ended.record

    async def _conclude(self, run: RunRecord) -> int:
        log = await self._link.client.runs.log(run.run_id)
        events = [entry.event for entry in log]
        now = await self._link.store.now()
        self._tell(f"the run has {run.status}")
        self._console.print()
        self._console.print(summary(run, {}, now))
        self._console.print()
        spans = read_spans(events, run.completed_at)
        self._console.print(timeline(spans, run.created_at, run.completed_at, now))
        self._console.print()
        proofs = prove(events, self._ledger.entries())
        self._console.print(proof_table(proofs))
        holds = run.status == "completed" and bool(proofs) and all(each.holds for each in proofs)
        cut_off = sum(each.interrupted for each in proofs)
        verdict = "every effect happened once, as recorded" if holds else "LOG AND WORLD DIFFER"
        self._console.print(
            Text(
                f"{verdict};\n{several(cut_off, 'attempt')} cut off by the kill, "
                "made again with the same idempotency key",
                "bold green" if holds else "bold red",
            )
        )
        return exits.OK if holds else exits.FAILED

    @asynccontextmanager
    async def _worker(self, output: IO[bytes]) -> AsyncGenerator[Child]:
        """Run a worker process while the block lasts."""
        environment = {**self._settings.environment(), LEDGER_VARIABLE: str(self._ledger.path)}
        arguments = ["worker", "holdfast.demo.app:app", "--queue", self._queue, "--grace", "2"]
        child = await Child.start(
            [*self._settings.arguments(), *arguments], environment, output=output
        )
        try:
            await self._until(lambda: self._signed_on(child), "a worker is ready")
            yield child
        finally:
            child.signal(signal.SIGTERM)
            await child.ended()

    async def _signed_on(self, child: Child) -> bool:
        if not child.alive:
            raise DemoFailed(f"the worker process {child.pid} ended before it was ready")
        return await is_signed_on(self._link.store, child)

    async def _in_the_middle_of_packing(self) -> str:
        """Return what is being packed if one parcel is done and others are not, else nothing."""
        entries = self._ledger.entries()
        done = any(each.kind == "happened" and "pack" in each.step for each in entries)
        return ", ".join(self._ledger.unfinished()) if done else ""

    async def _waits_for_courier(self, handle: RunHandle[object]) -> bool:
        run = await handle.get()
        return run.status != "running" or (run.wait is not None and bool(run.wait.awaiting))

    async def _until(self, look: Callable[[], Awaitable[str | bool]], what: str) -> str | bool:
        """Call `look` until it returns something, and return that."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while not (seen := await look()):
                    await asyncio.sleep(_POLL_SECONDS)
                return seen
        except TimeoutError:
            raise DemoFailed(f"{_PATIENCE_SECONDS:g} s were not enough until {what}") from None

    def _tell(self, text: str, style: str = "") -> None:
        elapsed = f"{time.monotonic() - self._began:5.1f} s  "
        self._console.print(Text(elapsed, "dim").append(text, style or "default"))


def proof_table(proofs: Sequence[Proof]) -> Table:
    """Return a table that compares the log with the outside world, a row for each step."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("step", no_wrap=True)
    table.add_column("in the log", justify="right")
    table.add_column("asked for", justify="right")
    table.add_column("happened", justify="right")
    table.add_column("")
    for proof in proofs:
        verdict = "[green]once[/green]" if proof.holds else "[bold red]differs[/bold red]"
        if proof.interrupted:
            verdict += f" [dim]({proof.interrupted} attempt cut off by the kill)[/dim]"
        table.add_row(
            proof.step, str(proof.recorded), str(proof.asked), str(proof.happened), verdict
        )
    return table
