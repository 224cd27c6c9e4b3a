"""Render the chart: the part of Helm's templates that it uses. Anything else is refused.

`{{ .Values.a.b | quote }}`, `{{- if (not) .Values.x }} … {{- end }}`, `{{- range .Values.x }}`,
`toYaml … | nindent N` and `add`, with whitespace removed before `{{-`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

_ACTION = re.compile(r"(?P<trim>\s*)\{\{(?P<dash>-?) (?P<code>.*?) \}\}", re.DOTALL)


def render(template: str, values: Mapping[str, Any], release: str) -> str:
    """Return a template with its values filled in."""
    scope = {"Values": values, "Release": {"Name": release}}
    parts: list[str] = []
    place = 0
    for found in _ACTION.finditer(template):
        parts.append(template[place : found.start()])
        if not found["dash"]:
            parts[-1] += found["trim"]
        parts.append("\0" + found["code"])
        place = found.end()
    text = "".join(_run(iter([*parts, template[place:]]), scope, scope, shown=True))
    return text.lstrip("\n")


def documents(path: Path, values: Mapping[str, Any], release: str = "shop") -> list[dict[str, Any]]:
    """Return the objects that a template makes, none if it is switched off."""
    text = render(path.read_text(encoding="utf-8"), values, release)
    return [each for each in yaml.safe_load_all(text) if each is not None]


def _run(parts: Iterator[str], root: Any, dot: Any, *, shown: bool) -> Iterator[str]:
    """Give the text of a block, up to its end."""
    for part in parts:
        if not part.startswith("\0"):
            if shown:
                yield part
            continue
        word, _, rest = part[1:].partition(" ")
        if word == "end":
            return
        if word == "if":
            negated = rest.startswith("not ")
            holds = bool(_value(rest.removeprefix("not "), root, dot)) != negated
            yield from list(_run(parts, root, dot, shown=shown and holds))
        elif word == "range":
            block = _block(parts)
            for each in _value(rest, root, dot) if shown else ():
                yield from _run(iter(block), root, each, shown=True)
        elif shown:
            yield _output(part[1:], root, dot)


def _block(parts: Iterator[str]) -> list[str]:
    block, depth = list[str](), 1
    for part in parts:
        depth += part.startswith(("\0if ", "\0range ")) - (part == "\0end")
        if not depth:
            return block
        block.append(part)
    raise AssertionError("a block has no end")


def _output(code: str, root: Any, dot: Any) -> str:
    first, *pipes = [each.strip() for each in code.split("|")]
    function, _, argument = first.partition(" ")
    if function == "toYaml":
        result: Any = yaml.safe_dump(_value(argument, root, dot)).rstrip("\n")
    elif function == "add":
        result = sum(int(_value(each, root, dot)) for each in argument.split())
    else:
        result = _value(first, root, dot)
    for pipe in pipes:
        name, _, number = pipe.partition(" ")
        if name == "quote":
            result = json.dumps(str(result))
        elif name == "nindent":
            lines = str(result).splitlines()
            result = "\n" + "\n".join(" " * int(number) + line for line in lines)
        else:
            raise AssertionError(f"the chart uses {pipe}: teach it to tests/docs/charts.py")
    return str(result)


def _value(path: str, root: Any, dot: Any) -> Any:
    if re.fullmatch(r"\d+", path):
        return int(path)
    if path == ".":
        return dot
    assert re.fullmatch(r"(\.\w+)+", path), f"the chart uses {path}"
    found = root
    for name in path.split(".")[1:]:
        found = found[name]
    return found
