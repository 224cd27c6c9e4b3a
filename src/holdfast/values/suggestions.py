"""What a caller may have meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

_ELSEWHERE: Final[Mapping[str, str]] = {
    "execute_child_workflow": "start_child",
    "execute_update": "update",
    "execute_workflow": "run",
    "get_workflow_handle": "handle",
    "list_workflows": "runs.list",
    "logger": "log",
    "query": "values",
    "start_child_workflow": "start_child",
    "start_workflow": "start",
    "uuid4": "uuid",
    "wait_condition": "wait_for_signal",
}
"""Names that other projects have for ours."""


def missing_attribute(
    owner: object, name: str, groups: Mapping[str, object] | None = None
) -> AttributeError:
    """Return the error for an attribute that does not exist, with the names that are like it.

    Similar are names that continue it (`follow`: `follow_log`), and those in `groups`, the
    parts of the owner by name (`list`: `runs.list`; `pause_queue`: `queues.pause`).
    """
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if not name.startswith("_"):
        near = [each for each in dir(type(owner)) if each.startswith(f"{name}_")]
        near += _in_groups(name, groups or {})
        ours = _ELSEWHERE.get(name, "")
        near += [ours] if {*dir(type(owner)), *(groups or {})} & {ours.split(".")[0]} else []
        if near:
            text = f"{text}: did you mean {' or '.join(near)}?"
    return AttributeError(text)


def _in_groups(name: str, groups: Mapping[str, object]) -> Iterator[str]:
    verb, _, noun = name.partition("_")
    for group, part in groups.items():
        if group.startswith("_"):
            continue
        if name in dir(part):
            yield f"{group}.{name}"
        elif noun and verb in dir(part) and group.startswith(noun[:5]):
            yield f"{group}.{verb}"


def similar_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like this one, None if none is.

    >>> similar_name("websit", ["run", "website"]), similar_name("x", ["run", "website"])
    ('website', None)
    """
    return next(iter(nearest(name, known, most=1)), None)


def nearest(name: str, known: Iterable[str], most: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return the known names that are like this one, the most similar first.

    >>> nearest("queu", ["run", "queue", "queues"])
    ['queue', 'queues']
    """
    from difflib import get_close_matches  # imports much, and is needed only for errors

    return get_close_matches(name, list(known), most, cutoff)
