"""Turn pages into HTML: templates, what they may use, and the files that they load.

All that comes from the database is text: templates escape every value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import msgspec
from markupsafe import Markup

from holdfast.insight.schedules import target_text
from holdfast.insight.wording import count_text, length, length_of, several, shorten
from holdfast.values.attributes import attribute_filters
from holdfast.values.moments import to_datetime, to_micros

if TYPE_CHECKING:
    import jinja2

MOST_SHOWN: Final = 16 * 1024  # characters of a payload within a page
MOST_TRACE: Final = 16 * 1024  # characters of a traceback
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

SIGNS: Final[Mapping[str, str]] = {
    "queued": "○",
    "running": "▶",
    "waiting": "◷",
    "paused": "‖",
    "stuck": "!",
    "completed": "✓",
    "failed": "✗",
    "timed_out": "◔",
    "cancelled": "⊘",
    "terminated": "■",
    "continued": "↪",
    "created": "·",
    "delayed": "◷",
    "retrying": "↻",
    "skipped": "⤼",
    "stopped": "■",
    "ok": "✓",
    "warn": "!",
    "fail": "✗",
    "started": "✓",
    "buffered": "◷",
    "silent": "!",
    "live": "✓",
    "due": "○",
    "in_flight": "▶",
    "dead": "✗",
}


class Asset(msgspec.Struct, frozen=True):
    """A file that pages load. Its name has a hash, so browsers may keep it for ever."""

    name: str
    media_type: str
    content: bytes


def _read_assets() -> dict[str, Asset]:
    """Return the files by their plain names."""
    found: dict[str, Asset] = {}
    for each in files("holdfast.server.pages").joinpath("assets").iterdir():
        stem, _, kind = each.name.rpartition(".")
        if kind in _TYPES:
            content = each.read_bytes()
            name = f"{stem}.{sha256(content).hexdigest()[:16]}.{kind}"
            found[each.name] = Asset(name, _TYPES[kind], content)
    return found


ASSETS: Final = _read_assets()
BY_HASHED_NAME: Final = {each.name: each for each in ASSETS.values()}


def time_tag(at: int | None, form: str = "ago") -> Markup:
    """Return a moment as an element: UTC for the server's reader, local once the script ran.

    `form` is `ago` for how far it is from now, or `clock`.
    """
    if at is None:
        return Markup("")
    moment = to_datetime(at)
    return Markup('<time datetime="{}" data-form="{}">{} UTC</time>').format(
        moment.isoformat().replace("+00:00", "Z"), form, moment.strftime("%Y-%m-%d %H:%M:%S")
    )


def pretty(text: str | None, most: int = MOST_SHOWN) -> str:
    """Return JSON text with line breaks, cut where it is too long for a page."""
    if text is None:
        return ""
    if len(text) > most:
        return text[:most] + " …"
    try:
        shown = msgspec.json.format(text, indent=2)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        shown = text
    return shown if len(shown) <= 4 * most else text


def words(name: str) -> str:
    """Return a name of code as words: `timed_out` becomes `timed out`."""
    return name.replace("_", " ")


def anchor(text: str) -> str:
    """Return a text as the id of an element: letters and digits, and a hash for the rest."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", text)[:40]
    return f"{plain}-{sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def url_query(parameters: Mapping[str, object]) -> str:
    """Return `?name=value&…` of what is given; lists are repeated, None and "" are left out."""
    given = {name: value for name, value in parameters.items() if value not in (None, "", [], ())}
    return "?" + urlencode(given, doseq=True) if given else ""


def clip(text: str) -> str:
    """Return a text cut where it is too long for a page."""
    return text if len(text) <= MOST_TRACE else text[:MOST_TRACE] + "\n…"


def clock_tag(at: int | None) -> Markup:
    """Return a moment as an element that shows the time of day."""
    return time_tag(at, "clock")


def json_text(value: object) -> str:
    """Return a value as JSON text."""
    return msgspec.json.encode(value).decode()


def segment(text: object) -> str:
    """Return a text as one part of a URL's path."""
    return quote(str(text), safe="")


def seconds(number: float | None) -> str:
    """Return an approximate length of time, "" for None."""
    return "" if number is None else "≈ " + length_of(number)


_FILTERS: Final[dict[str, Any]] = {
    "time": time_tag,
    "clock": clock_tag,
    "pretty": pretty,
    "words": words,
    "shorten": shorten,
    "several": several,
    "counted": count_text,
    "target": target_text,
    "anchor": anchor,
    "seg": segment,
    "query": url_query,
    "attributes": attribute_filters,
    "micros": to_micros,
    "json_text": json_text,
    "clip": clip,
    "seconds": seconds,
    "took": length,
}
_GLOBALS: Final[dict[str, Any]] = {"signs": SIGNS}


@cache
def _templates() -> jinja2.Environment:
    """Load the templates' language when the first page is asked for: it takes 50 ms."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("holdfast.server.pages", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(_FILTERS)
    made.globals.update(_GLOBALS)
    return made


def render(template: str, values: Mapping[str, object]) -> str:
    """Return the HTML of a template."""
    return _templates().get_template(template).render(values)
