"""The tools of `holdfast mcp --docs`: search and read the documentation. They need no database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from holdfast.docs import SKILL, read_page, search_pages
from holdfast.mcp.calling import Answer, find_tool, fitted
from holdfast.mcp.tools import Described, Tool
from holdfast.server.operations import ForAgents
from holdfast.server.problems import problem_of


class SearchDocs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Words, and how many sections are wanted."""

    words: Annotated[str, Meta(min_length=1, max_length=500)]
    limit: Annotated[int, Meta(ge=1, le=50)] = 8


class ReadDocs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a page, as a search gives it."""

    page: Annotated[str, Meta(min_length=1, max_length=200)] = SKILL


_SEARCH: Final = (
    "Search the documentation of holdfast, durable workflows for Python: returns sections, the "
    "best first, each with its page and a line of it."
)
_READ: Final = (
    "Read a page of the documentation of holdfast as Markdown. Read the page `skill`, the default, "
    "before you write code with holdfast."
)


class DocsToolbox:
    """Tools that search and read the documentation."""

    name = "holdfast"
    _tools: Final = (
        Tool("search_docs", ForAgents(about=_SEARCH), arguments=SearchDocs),
        Tool("read_docs", ForAgents(about=_READ), arguments=ReadDocs),
    )

    @property
    def tools(self) -> list[Described]:
        """The tools that may be called."""
        return [each.described() for each in self._tools]

    async def call(self, name: str, arguments: Mapping[str, object]) -> Answer:
        """Carry out a call."""
        try:
            tool = find_tool(name, self._tools, self.tools)
            asked: Any = fitted(arguments, tool.arguments)
            if isinstance(asked, SearchDocs):
                found = search_pages(asked.words, asked.limit)
                return Answer(msgspec.json.encode(found).decode())
            return Answer(read_page(asked.page))
        except Exception as error:
            return Answer(problem_of(error).detail, failed=True)
