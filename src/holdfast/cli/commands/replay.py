"""`holdfast replay`, `runs stack` and `runs export`: the log of one run, and its code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli.answers import Answer, call, current_settings
from holdfast.cli.exits import FAILED, Refusal
from holdfast.cli.finding import find_run
from holdfast.cli.framework import FilePath, command, option
from holdfast.cli.inputs import app_argument, complete_app
from holdfast.cli.render.console import write_json

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.definitions.app import App
    from holdfast.runtime.code.instance import Instance
    from holdfast.runtime.code.stack import TaskStack
    from holdfast.runtime.turn.rehearsal import Difference
    from holdfast.types import Event, RunRecord

_MOST_KEYS: Final = 10  # that an error names
_SHOWN: Final = 200  # characters of a local variable
_IDS: Final = {"run_id", "child_run_id", "seed"}
_NOT_COMPARED: Final = {"started_at", "fire_at", "seen", "python", "caught"} | _IDS


@command(
    "export",
    examples=(
        "holdfast runs export checkout/order-7 -o tests/logs/order-7.jsonl",
        "holdfast check shop:app --logs tests/logs",
    ),
)
@click.argument("reference", metavar="RUN")
@option("-o --output FILE", "A new file; the default is stdout.", type=FilePath(path_type=Path))
def export(reference: str, output: Path | None) -> None:
    """Write a run with its log as one line of JSON, for `holdfast check --logs` and `replay`.

    The run may be open or ended. Payloads stand in the line as they are; those that are encrypted
    stay so. Of those in an object store it has the contents.
    """
    if output is not None and output.exists():
        raise click.UsageError(f"{output} exists: name a new file")
    line = call(lambda link: _read_line(link, reference), stored=True)
    if output is None:
        click.echo(line)
        return
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(f"{line}\n", encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{output} cannot be written: {error.strerror}") from None


@command(
    "stack",
    examples=(
        "holdfast runs stack checkout/order-7 shop:app",
        "holdfast runs stack tests/logs/order-7.jsonl shop:app",
    ),
)
@click.argument("reference", metavar="RUN")
@click.argument(
    "app_reference", metavar="[MODULE:APP]", required=False, shell_complete=complete_app
)
def stack(reference: str, app_reference: str | None) -> None:
    """Show where the code of a run stands: its tasks, their lines, and what each awaits.

    The log is replayed here with the code of MODULE:APP, by default the only app of the working
    directory. RUN may also be a file that `holdfast runs export` has written.
    """
    from holdfast.cli.process.hash_seed import fix_hash_seed

    fix_hash_seed()
    replay = _load(reference, app_reference)
    _refuse(replay.difference())
    last = _stack_after(replay)
    Answer(list(map(_object, last)), lambda: _write(last), none="its code has ended").write()


@command(
    "replay",
    examples=(
        "holdfast replay checkout/order-7 shop:app",
        "holdfast replay order-7.jsonl shop:app --until charge#2 --locals",
        "holdfast replay checkout/order-7 shop:app --until 12 --pdb",
        "holdfast replay checkout/order-7 shop:app --diff checkout/order-8",
    ),
)
@click.argument("reference", metavar="RUN")
@app_argument
@option(
    "--until INDEX|KEY",
    "Stop after this entry, or after the last one of a call's key: `charge#2`.",
    name="last_entry",
)
@option("--pdb", "Debug the code: of the entry of --until, or all.", name="debug")
@option("--locals", "Show the local variables at the end.", name="with_locals")
@option("--diff OTHER", "Name the first entry that differs from OTHER.", name="other")
def replay(
    reference: str,
    app_reference: str,
    last_entry: str | None,
    debug: bool,
    with_locals: bool,
    other: str | None,
) -> None:
    """Replay the log of a run with the code of an app: which line each entry led to.

    RUN is a run of the database, or a file that `holdfast runs export` has written. Nothing is
    written, and no step runs: each call gets what the log has. Breakpoints in workflow code work.
    Exit code 1 if the code does not follow the log. With --json each line is an object.
    """
    from bdb import BdbQuit

    from holdfast.cli.process.debugger import stop_before, user_debugger
    from holdfast.cli.process.hash_seed import fix_hash_seed
    from holdfast.errors import DeterminismError

    fix_hash_seed()
    one = _load(reference, app_reference)
    until = None if last_entry is None else _index_of(last_entry, one.log)
    if other is not None:
        _compare(one, _load(other, app_reference))
        return
    first = 0 if until is None else until
    debugger = user_debugger() if debug else None
    before = None if debugger is None else partial(stop_before, debugger, first)
    last: tuple[TaskStack, ...] = ()
    try:
        with closing(one.entries(until, before)) as entries:
            for place, (event, instance) in enumerate(entries):
                if debugger is not None and debugger.quitting:
                    return
                last = _stack_of(instance)
                _write_entry(place, event, last)
            if not current_settings().json:
                _write(last, with_locals=with_locals)
    except BdbQuit:  # raised in code that runs outside of the tasks of the run
        return
    except DeterminismError:
        if debugger is not None and debugger.quitting:
            return  # the code has failed of it; else it is told below what a worker would say
    finally:
        if debugger is not None:
            sys.settrace(None)  # what follows is not debugged
    if until is None:
        _refuse(one.difference())


@dataclass(frozen=True, slots=True)
class _Replay:
    """A run whose log the code at hand can be fed."""

    app: App
    run: RunRecord
    log: Sequence[Event]
    clock_at: int | None

    def _code(self) -> tuple[Any, Any]:
        from holdfast.insight.replayable import info_of

        run = self.run
        return self.app.find(run.name, run.version), info_of(run, self.log, self.clock_at)

    def entries(
        self, until: int | None = None, before: Callable[[int, Event], None] | None = None
    ) -> Generator[tuple[Event, Instance]]:
        """Feed the entries to the code, up to and with that at index `until`."""
        from holdfast.runtime.turn.rehearsal import replay

        log = self.log if until is None else self.log[: until + 1]
        return replay(*self._code(), log, *() if before is None else (before,))

    def difference(self) -> Difference | None:
        """Return how the code differs from the whole log."""
        from holdfast.runtime.turn.rehearsal import rehearse

        app = self.app
        with _quietly():
            return rehearse(*self._code(), self.log, strict=app.strict, careful=app.careful)


def _index_of(entry: str, log: Sequence[Event]) -> int:
    """Return the index that --until names, by itself or by a key. Raises UsageError."""
    keys = {event.key: index for index, event in enumerate(log) if event.key}  # the last of each
    if entry in keys:
        return keys[entry]
    if not entry.isdecimal():
        some = ", ".join([*islice(keys, _MOST_KEYS), *(["…"] if len(keys) > _MOST_KEYS else [])])
        raise click.UsageError(
            f"no entry of the log has the key {entry!r}; its keys: {some or 'none'}"
        )
    if int(entry) >= len(log):
        raise click.UsageError(f"the log has {len(log)} entries: --until is 0 to {len(log) - 1}")
    return int(entry)


@contextmanager
def _quietly() -> Generator[None]:
    """Let code that is only compared write to stderr, and pass its breakpoints."""

    def passed(*_: object, **__: object) -> None: ...

    hook, sys.breakpointhook = sys.breakpointhook, passed
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.breakpointhook = hook


def _load(reference: str, app_reference: str | None) -> _Replay:
    from holdfast.cli.process.loading import AppReference
    from holdfast.insight.replayable import check_log
    from holdfast.insight.run_files import opened, read_file

    app = AppReference.parse(app_reference or _only_app()).load()
    if os.path.isfile(reference):  # Path.is_file raises for a name that no file can have
        run, log, clock_at = read_file(Path(reference), app)
    else:
        run, log, clock_at = call(lambda link: _read_run(link, reference), app=app)
        log = opened(log, app)  # a run of the archive has its payloads as they were stored
    if run.app not in ("", app.name):
        raise click.UsageError(
            f"run {run.run_id} is one of app {run.app!r}, and this is {app.name!r}"
        )
    check_log(log)
    return _Replay(app, run, log, clock_at)


async def _read_run(link: Link, reference: str) -> tuple[RunRecord, list[Event], int | None]:
    from holdfast.insight.replayable import clocks_of_forks

    run = await find_run(link.client, reference)
    if run.kind != "workflow":
        raise click.UsageError(f"run {run.run_id} is one of a flow: there is no code to replay")
    if run.archive is not None:  # the runs that it retries may be there, too
        archived = await link.client.archive.get(run.run_id)
        return run, archived.events, archived.clock_at
    log = [entry.event for entry in await link.client.runs.log(run.run_id)]
    clocks = await clocks_of_forks(link.store, {run.run_id: log})
    return run, log, clocks.get(run.run_id)


async def _read_line(link: Link, reference: str) -> str:
    from holdfast.payloads import with_objects
    from holdfast.retention.reading import write_run

    [line] = await with_objects(link.store, [write_run(*await _read_run(link, reference))])
    return line


def _only_app() -> str:
    from holdfast.cli.process.app_names import find_app_names

    found = list(find_app_names(Path.cwd()))
    if len(found) == 1:
        return found[0]
    known = f": there are {', '.join(found)}" if found else ""
    raise click.UsageError(f"name the app, as module:app{known}")


def _refuse(difference: Difference | None) -> None:
    """End the command with code 1 if the code does not follow the log."""
    from holdfast.cli.commands.check import WOULD

    if difference is not None:
        place = "" if difference.line is None else f"{difference.line}: "
        entry = "" if difference.index is None else f" (entry {difference.index})"
        would = WOULD[difference.kind]
        raise Refusal(f"{place}the run {would}{entry}: {difference.reason}", FAILED)


def _compare(one: _Replay, two: _Replay) -> None:
    """Name the first entries that differ, and the line of the code that led to them."""
    length = min(len(one.log), len(two.log))
    pairs = zip(one.log, two.log, strict=False)
    first = next(
        (place for place, pair in enumerate(pairs) if len(set(map(_told, pair))) > 1), length
    )
    same = first == length == max(len(one.log), len(two.log))
    told = {
        str(each.run.run_id): None if first == len(each.log) else _told(each.log[first])
        for each in (one, two)
    }

    def write() -> None:
        if same:
            click.echo(f"both logs have the same {length} entries")
            return
        click.echo(f"the first {first} entries are the same; entry {first} is not:")
        for run_id, entry in told.items():
            click.echo(f"  {run_id} {'(its log ends here)' if entry is None else ' '.join(entry)}")
        if first:
            _write(_stack_after(one, first - 1))

    Answer({"index": None if same else first, "entries": told}, write).write()


def _told(event: Event) -> tuple[str, str, str]:
    """Return what an entry says, without moments and ids."""
    import msgspec

    text = event.details or "null"
    if text.startswith("{"):
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        kept = {name: each for name, each in fields.items() if name not in _NOT_COMPARED}
        text = msgspec.json.encode(kept).decode()
    return event.type, event.key or "", text


def _stack_after(replay: _Replay, until: int | None = None) -> tuple[TaskStack, ...]:
    """Return where the code stands after the entry at `until`, or after all."""
    last: tuple[TaskStack, ...] = ()
    with _quietly(), closing(replay.entries(until)) as entries:
        for _, instance in entries:
            last = _stack_of(instance)
    return last


def _stack_of(instance: Instance) -> tuple[TaskStack, ...]:
    from holdfast.runtime.code.stack import stack_of

    return () if instance.loop.ended else stack_of(instance)


def _all(tasks: Sequence[TaskStack]) -> Iterator[TaskStack]:
    for task in tasks:
        yield task
        yield from _all(task.children)


def _write_entry(place: int, event: Event, tasks: Sequence[TaskStack]) -> None:
    """Write an entry, and the lines at which the code stands after it."""
    lines = list(dict.fromkeys(task.lines[-1] for task in _all(tasks) if task.lines))
    if current_settings().json:
        write_json({"index": place, "type": event.type, "key": event.key, "lines": lines})
    else:
        key = f" {event.key}" if event.key else ""
        click.echo(f"{place:>4} {event.type}{key}: {', '.join(lines) or 'the end'}")


def _object(task: TaskStack) -> dict[str, object]:
    children = list(map(_object, task.children))
    return {"name": task.name, "lines": task.lines, "awaits": task.awaits, "children": children}


def _write(tasks: Sequence[TaskStack], depth: int = 0, *, with_locals: bool = False) -> None:
    from reprlib import Repr

    shorten = Repr()
    shorten.maxstring = shorten.maxother = _SHOWN
    for task in tasks:
        indent = "  " * depth
        click.echo(f"{indent}{task.name} awaits {task.awaits}")
        for line, frame in zip(task.lines, task.frames, strict=True):
            click.echo(f"{indent}  {line}")
            for name, value in frame.f_locals.items() if with_locals else ():
                click.echo(f"{indent}    {name} = {shorten.repr(value)}")
        _write(task.children, depth + 1, with_locals=with_locals)
