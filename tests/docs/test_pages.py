"""Every code block of the README and of the pages under docs does what it says.

A page is one program: its Python blocks run in order in one module, with `await` at the top
level; blocks that show a file are written there; console and SQL blocks are run in between.
Functions named `test_…` are called. Hidden blocks may use `stack`, which is closed with the page,
and `await until(query)`, which returns what the query gives once that is true.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import logging
import re
import sys
import types
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest

from holdfast.values.durations import seconds
from tests.cli.forks import forked_programs
from tests.docs.blocks import PAGES, ROOT, Block, read_blocks, read_commands
from tests.docs.terminals import Terminals

_SHOWN_ONLY = {"text", "mermaid"}
_DOCSTRINGS = {"py", "pycon"}  # signatures, and examples that run where they are written
_OTHERS = {"py", "ts"}  # a program for another project
_RUN = {"python", "console", "sql"}
# What stands for something of the reader's, and what the text before has introduced.
_READERS_OWN = {"app", "client", "connection", "database", "browser", "gateway", "Refused"}
_READERS_OWN |= {"Order", "checkout", "slow", "token", "other_token", "ask_model", "call_tool"}
_READERS_OWN |= {"model"}
_PERSONS_SECONDS = 60
_PERSONS_TIME = f"asyncio.sleep({_PERSONS_SECONDS})"


@pytest.fixture(scope="module", autouse=True)
def programs() -> Iterator[None]:
    """Programs of Python that a reader starts are forks of a process that has imported much."""
    with forked_programs("holdfast.agents.pydantic_ai", "pydantic_ai.models.function"):
        yield


class Reader:
    """A reader who follows a page exactly."""

    def __init__(self, page: Path, directory: Path, database_url: str) -> None:
        self.page, self.directory, self.database_url = page, directory, database_url
        self.module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
        self.terminals = Terminals(directory, database_url)

    async def do(self, block: Block) -> None:
        """Follow one block."""
        if block.file is not None:
            path = self.directory / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._with_short_waits(block.text), encoding="utf-8")
        elif block.language == "console":
            for command, comment in read_commands(block):
                await self.terminals.type(command, comment)
        elif block.language == "sql":
            await self._query(block.text)
        elif block.language == "python":
            await self._execute(block)

    def _with_short_waits(self, text: str) -> str:
        """Return code of the tutorial that waits less than it leaves a person."""
        if self.page.name == "tutorial.md":
            assert _PERSONS_TIME in text or "sleep" not in text
            limits = re.findall(r'result\(timeout="(.+?)"\)', text)
            assert all(seconds(limit) > _PERSONS_SECONDS for limit in limits), limits
            return text.replace(_PERSONS_TIME, "asyncio.sleep(8)")
        return text

    async def _query(self, text: str) -> None:
        connection = await asyncpg.connect(self.database_url)
        try:
            await connection.execute(await self.terminals.fill_in(text))
        finally:
            await connection.close()

    async def _execute(self, block: Block) -> None:
        known = set(vars(self.module))
        source = "\n" * (block.line - 1) + block.text
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(source, str(self.page), "exec", flags=flags)
        result = eval(code, vars(self.module))
        if inspect.iscoroutine(result):
            await result
        for name in vars(self.module).keys() - known:
            if name.startswith("test_"):
                await getattr(self.module, name)()


@pytest.fixture
def levels() -> Iterator[None]:
    """Give the loggers the levels back that they had before the page."""
    loggers = logging.root.manager.loggerDict
    before = {
        name: each.level for name, each in loggers.items() if isinstance(each, logging.Logger)
    }
    yield
    for name, each in loggers.items():
        if isinstance(each, logging.Logger):
            each.setLevel(before.get(name, logging.NOTSET))


@pytest.mark.usefixtures("levels")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
async def test_the_blocks_of_a_page_do_what_they_say(
    page: Path, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(page, tmp_path, database_url)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    before = dict(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", database_url)
    monkeypatch.setitem(sys.modules, reader.module.__name__, reader.module)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(reader.terminals.close)
        vars(reader.module).update(stack=stack, until=reader.terminals.until)
        try:
            for block in read_blocks(page):
                if block.file is not None:  # another module may have its name
                    monkeypatch.delitem(sys.modules, Path(block.file).stem, raising=False)
                await reader.do(block)
        finally:
            for name in sys.modules.keys() - before.keys():
                module = sys.modules[name]
                file = str(getattr(module, "__file__", None) or "")
                if str(tmp_path) in file or getattr(module, "__spec__", None) is None:
                    del sys.modules[name]  # it is the page's, or was made by it
            sys.modules.update(before)  # what a page has put in the place of others


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_block_of_a_page_is_checked(page: Path) -> None:
    languages = {block.language for block in read_blocks(page) if block.file is None}
    if page.parent.name == "api":
        languages -= _DOCSTRINGS
    elif page.read_text(encoding="utf-8").startswith("# Coming from "):
        languages -= _OTHERS
    assert languages <= _SHOWN_ONLY | _RUN


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_readers_see_where_each_name_comes_from(page: Path) -> None:
    known, unknown = {*dir(builtins), *_READERS_OWN}, set[str]()
    for block in read_blocks(page):
        if block.language != "python" or block.file is not None or block.hidden:
            continue
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
        nodes = list(ast.walk(compile(block.text, str(page), "exec", flags=flags)))
        known |= {name for node in nodes for name in _defined(node)}
        used = [node for node in nodes if isinstance(node, ast.Name)]
        unknown |= {node.id for node in used if isinstance(node.ctx, ast.Load)} - known
    assert unknown == set()


def _defined(node: ast.AST) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Import() | ast.ImportFrom():
            return [each.asname or each.name.partition(".")[0] for each in node.names]
        case ast.Name(ctx=ast.Store()):
            return [node.id]
        case ast.arg():
            return [node.arg]
        case ast.ExceptHandler(name=str()):
            return [node.name]
    return []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_have_targets(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if link and not (page.parent / link).exists()]
    assert missing == []
