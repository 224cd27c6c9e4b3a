"""Random changes of random programs: the nodes, the edits, and the code that runs them.

Each call has a number of its own as its argument, its *work*, which edits keep: so a call that was
renamed or moved is known as the same work.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import zlib
from collections.abc import Coroutine, Iterator
from random import Random
from typing import Any
from uuid import UUID

from holdfast import Context
from holdfast.definitions.activities import Activity
from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Workflow
from holdfast.retry import Retry

Node = list[Any]
Block = list[Node]
ANOTHER_RUN = UUID(int=77)
DELAYS = (0, 1, 2, 3, 5, 8)


def _fn(work: object) -> int:
    raise AssertionError("the world gives the results")


STEPS = {name: Step(_fn, name=name, retry=Retry()) for name in "abcdef"}
ALIASES = {
    (new, old): Step(_fn, name=new, retry=Retry(), aliases=[old])
    for new in "abcdef"
    for old in "abcdef"
    if new != old
}
ACTIVITIES = {name: Activity(_fn, name=name) for name in "abcdef"}
CALLS = ("step", "activity", "child", "approve", "send", "if")
BRANCHES = ("gather", "gather_all", "group", "first", "first_cancel")
KINDS = (*BRANCHES, "timeout", "finally", "except", "loop", "if", "task", "spawn", "answer", "seq")


def result_of(work: str) -> int:
    """Return what the world gives as the result of a call."""
    return zlib.crc32(work.encode()) % 1000


class Code:
    """Runs one program; `made` is the work that its code has called, in order."""

    wrong: list[str]

    def __init__(self, ctx: Context, made: list[str], wrong: list[str]) -> None:
        self.ctx, self.made, self.wrong = ctx, made, wrong
        self.background: list[asyncio.Task[Any]] = []

    async def block(self, block: Block, at: str) -> None:
        for op, *rest in block:
            await getattr(self, f"do_{op}")(at, *rest)

    def make(self, work: str) -> str:
        self.made.append(work)
        return work

    def given(self, work: str, result: int) -> None:
        if result != result_of(work):
            self.wrong.append(f"{work} was given the result of another call")

    async def do_step(self, at: str, name: str, work: str, old: str | None = None) -> None:
        step = STEPS[name] if old is None else ALIASES[name, old]
        work = self.make(work + at)
        self.given(work, await step(work))

    async def do_activity(self, at: str, name: str, work: str, old: str | None = None) -> None:
        work = self.make(work + at)
        self.given(work, await ACTIVITIES[name](work))

    async def do_child(self, at: str, name: str, work: str, old: str | None = None) -> None:
        work = self.make(work + at)
        self.given(work, await self.ctx.child(f"child-{name}", work, type=int))

    async def do_approve(self, at: str, name: str, work: str, old: str | None = None) -> None:
        await self.ctx.request_approval(self.make(work + at))

    async def do_send(self, at: str, name: str, work: str, old: str | None = None) -> None:
        self.ctx.signal_run(ANOTHER_RUN, name, self.make(work + at))

    async def do_sleep(self, at: str, delay: int) -> None:
        await asyncio.sleep(delay)

    async def do_signal(self, at: str, name: str, timeout: int | None) -> None:
        with contextlib.suppress(TimeoutError):
            await self.ctx.wait_for_signal(name, timeout=timeout)

    async def do_set(self, at: str, name: str) -> None:
        self.ctx.set_value(name, at)

    async def do_chance(self, at: str) -> None:
        self.ctx.random.random()
        self.ctx.uuid()

    async def do_pure(self, at: str) -> None:
        """Compute something that nobody else sees."""

    async def do_bug(self, at: str) -> None:
        raise NameError("name 'settings' is not defined")

    async def do_again(self, at: str) -> None:
        self.ctx.continue_as_new("next")

    async def do_seq(self, at: str, block: Block) -> None:
        await self.block(block, at)

    async def do_patch(self, at: str, name: str, new: Block, old: Block) -> None:
        await self.block(new if self.ctx.patched(name) else old, at)

    async def do_if(self, at: str, name: str, work: str, even: Block, odd: Block) -> None:
        await self.do_step(at, name, work)
        await self.block(odd if result_of(work + at) % 2 else even, at)

    async def do_loop(self, at: str, count: int, block: Block) -> None:
        for place in range(count):
            await self.block(block, f"{at}i{place}")

    async def do_task(self, at: str, fn: str, block: Block) -> None:
        await self._task(fn, block, at)

    async def do_spawn(self, at: str, fn: str, block: Block) -> None:
        self.background.append(self._task(fn, block, at))

    def _task(self, fn: str, block: Block, at: str) -> asyncio.Task[None]:
        return asyncio.create_task(self._named(fn, block, at))

    def _named(self, fn: str, block: Block, at: str) -> Coroutine[Any, Any, None]:
        coroutine = self.block(block, at)
        coroutine.__name__ = fn
        return coroutine

    async def do_gather(self, at: str, fn: str, blocks: list[Block]) -> None:
        await asyncio.gather(*(self._named(fn, block, at) for block in blocks))

    async def do_gather_all(self, at: str, fn: str, blocks: list[Block]) -> None:
        named = (self._named(fn, block, at) for block in blocks)
        await asyncio.gather(*named, return_exceptions=True)

    async def do_group(self, at: str, fn: str, blocks: list[Block]) -> None:
        async with asyncio.TaskGroup() as group:
            for block in blocks:
                group.create_task(self._named(fn, block, at))

    async def do_first(self, at: str, fn: str, blocks: list[Block]) -> None:
        tasks = [self._task(fn, block, at) for block in blocks]
        _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self.background += pending

    async def do_first_cancel(self, at: str, fn: str, blocks: list[Block]) -> None:
        tasks = [self._task(fn, block, at) for block in blocks]
        _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    async def do_timeout(self, at: str, delay: int, block: Block) -> None:
        try:
            async with asyncio.timeout(delay):
                await self.block(block, at)
        except TimeoutError:
            pass

    async def do_finally(self, at: str, block: Block, cleanup: Block) -> None:
        try:
            await self.block(block, at)
        finally:
            await self.block(cleanup, at)

    async def do_except(self, at: str, block: Block, handler: Block) -> None:
        try:
            await self.block(block, at)
        except Exception:
            await self.block(handler, at)

    async def do_answer(self, at: str, name: str, block: Block) -> None:
        async def answer(payload: int) -> str:
            await self.block(block, f"{at}u{payload}")
            return at

        self.ctx.handle_update(name, answer)


def workflow(program: Block, runs: list[list[str]], wrong: list[str]) -> Workflow[Any, Any]:
    """Make the workflow of a program. Each execution adds to `runs` the work that it has called."""

    async def run(ctx: Context) -> str:
        made: list[str] = []
        runs.append(made)
        await Code(ctx, made, wrong).block(program, "")
        return "done"

    return Workflow(run, name="program")


class Maker:
    """Makes random programs, and changes them."""

    def __init__(self, chance: Random) -> None:
        self.chance, self.count = chance, 0

    def work(self) -> str:
        self.count += 1
        return f"w{self.count}."

    def leaf(self) -> Node:
        chance, name = self.chance, self.chance.choice("abc")
        op = chance.choice(
            ["step"] * 6 + ["activity"] * 3 + ["child", "approve", "send", "sleep", "sleep"]
            + ["signal", "signal", "set", "chance"]
        )  # fmt: skip
        if op in CALLS:
            return [op, name, self.work(), None]
        if op == "sleep":
            return [op, chance.choice(DELAYS)]
        if op == "signal":
            return [op, chance.choice("xy"), chance.choice([None, None, *DELAYS])]
        return [op, name] if op == "set" else [op]

    def block(self, depth: int) -> Block:
        return [self.node(depth) for _ in range(self.chance.randint(1, 3))]

    def node(self, depth: int) -> Node:
        chance = self.chance
        if depth == 0 or chance.random() < 0.55:
            return self.leaf()
        op = chance.choice(KINDS)
        if op in BRANCHES:
            return [op, chance.choice("fgh"), [self.block(depth - 1) for _ in range(2)]]
        block = self.block(depth - 1)
        match op:
            case "task" | "spawn":
                return [op, chance.choice("fgh"), block]
            case "answer":
                return [op, chance.choice("uv"), block]
            case "timeout":
                return [op, chance.choice(DELAYS), block]
            case "loop":
                return [op, chance.randint(1, 3), block]
            case "if":
                return [op, "e", self.work(), block, self.block(depth - 1)]
            case "seq":
                return [op, block]
            case _:
                return [op, block, self.block(depth - 1)]

    def program(self) -> Block:
        program = [self.node(3) for _ in range(self.chance.randint(2, 5))]
        return [*program, ["again"]] if self.chance.random() < 0.1 else program

    # Changes

    def change(self, program: Block, edit: str) -> Block:
        """Return the program after one edit at a random place; the same one if it fits nowhere."""
        changed = copy.deepcopy(program)
        if edit == "append":
            return [*changed, self.node(1)]
        if edit in ("alias", "rename_all"):
            return self.renamed(changed, with_alias=edit == "alias")
        spots = list(places(changed))
        self.chance.shuffle(spots)
        for block, place in spots:
            if getattr(self, f"edit_{edit}")(block, place):
                break
        return changed

    def renamed(self, program: Block, *, with_alias: bool) -> Block:
        """Give a step another name, at all its calls."""
        old = self.chance.choice("abc")
        for block, place in places(program):
            node = block[place]
            if node[0] == "step" and node[1] == old:
                node[1] = "d"
                node[3] = old if with_alias else None
        return program

    def edit_insert(self, block: Block, place: int) -> bool:
        block.insert(place, self.node(1))
        return True

    def edit_remove(self, block: Block, place: int) -> bool:
        del block[place]
        return True

    def edit_replace(self, block: Block, place: int) -> bool:
        block[place] = self.node(1)
        return True

    def edit_rename(self, block: Block, place: int) -> bool:
        node = block[place]
        if node[0] not in ("step", "activity", "child", "if"):
            return False
        node[1] = self.chance.choice([name for name in "abcdef" if name != node[1]])
        return True

    def edit_rename_function(self, block: Block, place: int) -> bool:
        node = block[place]
        if node[0] in (*BRANCHES, "task", "spawn"):
            node[1] = node[1] + "2"
        return node[0] in (*BRANCHES, "task", "spawn")

    def edit_argument(self, block: Block, place: int) -> bool:
        if block[place][0] in CALLS:
            block[place][2] = self.work()
        return block[place][0] in CALLS

    def edit_length(self, block: Block, place: int) -> bool:
        if block[place][0] in ("sleep", "timeout", "loop"):
            block[place][1] += 1
        return block[place][0] in ("sleep", "timeout", "loop")

    def edit_reorder(self, block: Block, place: int) -> bool:
        if place + 1 == len(block):
            return False
        block[place], block[place + 1] = block[place + 1], block[place]
        return True

    def edit_swap(self, block: Block, place: int) -> bool:
        for part in block[place]:
            if has_blocks(part):
                part.reverse()
                return True
        if block[place][0] in ("if", "finally", "except"):
            block[place][-2:] = block[place][:-3:-1]
            return True
        return False

    def edit_into_task(self, block: Block, place: int) -> bool:
        block[place] = ["task", self.chance.choice("fgh"), [block[place]]]
        return True

    def edit_into_gather(self, block: Block, place: int) -> bool:
        end = place + self.chance.randint(1, 2)
        block[place:end] = [[self.chance.choice(BRANCHES), "g", [[n] for n in block[place:end]]]]
        return True

    def edit_out_of_gather(self, block: Block, place: int) -> bool:
        if block[place][0] not in BRANCHES:
            return False
        block[place : place + 1] = [node for each in block[place][2] for node in each]
        return True

    def edit_wrap(self, block: Block, place: int) -> bool:
        around: list[Node] = [
            ["timeout", 8, [block[place]]],
            ["except", [block[place]], self.block(0)],
            ["finally", [block[place]], self.block(0)],
            ["if", "f", self.work(), [block[place]], []],
        ]
        block[place] = self.chance.choice(around)
        return True

    def edit_unwrap(self, block: Block, place: int) -> bool:
        if block[place][0] not in ("timeout", "except", "finally", "seq", "loop"):
            return False
        block[place : place + 1] = next(part for part in block[place] if isinstance(part, list))
        return True

    def edit_bug(self, block: Block, place: int) -> bool:
        block.insert(place, ["bug"])
        return True

    # Changes that need no care, or that are made with it

    def edit_pure(self, block: Block, place: int) -> bool:
        block.insert(place, ["pure"])
        return True

    def edit_extract(self, block: Block, place: int) -> bool:
        end = place + self.chance.randint(1, 3)
        block[place:end] = [["seq", block[place:end]]]
        return True

    def edit_patch(self, block: Block, place: int) -> bool:
        end = place + self.chance.randint(0, 2)
        old = block[place:end]
        name = f"p{self.work()}"
        block[place:end] = [["patch", name, self.block(1), old]]
        return True


def places(block: Block) -> Iterator[tuple[Block, int]]:
    """Yield each place of a node, with the block that it is in."""
    for place, node in enumerate(block):
        yield block, place
        for part in node:
            if isinstance(part, list):
                yield from _inside(part)


def has_blocks(part: object) -> bool:
    """Return True if this is a list of blocks."""
    match part:
        case [[[*_], *_], *_]:
            return True
        case _:
            return False


def _inside(part: list[Any]) -> Iterator[tuple[Block, int]]:
    if has_blocks(part):
        for block in part:
            yield from places(block)
    else:
        yield from places(part)
