"""Make docs/images/demo.svg: `holdfast demo` as it really runs, as a moving picture of a terminal.

.venv/bin/python scripts/record_demo.py

The demo runs in a terminal of its own (a pty). Each line appears as long after the first as it
did, only that no pause is longer than `LONGEST_PAUSE`. The picture needs no script and no font: it
is text with a CSS animation, which stays at its last state where nothing may move.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rich.style import Style
from rich.text import Text

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "demo.svg"
COLUMNS = 100
ROWS = 30  # that are seen at once; the terminal scrolls
LONGEST_PAUSE = 1.5  # seconds
HOLD_SECONDS = 6.0  # how long the last state is shown, before it begins again
CHARACTER, LINE, MARGIN = 7.8, 19, 16  # pixels
COLOURS = {1: "#ff7b72", 2: "#7ee787", 3: "#d29922", 6: "#79c0ff"}  # by ANSI's numbers
NEW_LINE = "\n"
PLAIN, DIM, BACKGROUND = "#d6dce4", "#8b949e", "#0d1117"


@dataclass(frozen=True)
class Line:
    """A line as the terminal shows it, and when it came."""

    at: float
    text: Text


def record(command: list[str]) -> list[Line]:
    """Run a command in a terminal, and return the lines that it writes."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    lines: list[Line] = []
    rest, began = b"", time.monotonic()
    while chunk := _read(ours):
        *whole, rest = (rest + chunk).split(b"\n")
        now = time.monotonic() - began
        lines += [Line(now, Text.from_ansi(each.decode().rstrip())) for each in whole]
    os.close(ours)
    if process.wait() != 0:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return lines


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # what Linux says at the end of a terminal
        return b""


def shorten(lines: list[Line]) -> list[Line]:
    """Return the lines with no pause between them that is too long to watch."""
    shown: list[Line] = []
    before = now = 0.0
    for line in lines:
        now += min(line.at - before, LONGEST_PAUSE)
        before = line.at
        shown.append(Line(now, line.text))
    return shown


def picture(command: str, lines: list[Line]) -> str:
    """Return the SVG."""
    prompt = Line(0.0, Text.assemble(("$ ", "green"), command))
    lines = [prompt, *(Line(each.at + 0.8, each.text) for each in lines)]
    whole = lines[-1].at + HOLD_SECONDS
    width, height = round(COLUMNS * CHARACTER + 2 * MARGIN), ROWS * LINE + 2 * MARGIN
    rules, body = [], []
    for number, line in enumerate(lines):
        if line.at:
            begins = f"{line.at / whole:.2%}"
            frames = f"0%{{opacity:0}}{begins},100%{{opacity:1}}"
            rules.append(f"@keyframes l{number}{{{frames}}}.l{number}{{{animated(number, whole)}}}")
        if line.text.plain.strip():
            y = MARGIN + LINE * number + 14
            body.append(f'<text class="l{number}" y="{y}">{spans(line.text)}</text>')
    scrolled = {
        f"{line.at / whole:.2%}": -LINE * max(0, number + 1 - ROWS)
        for number, line in enumerate(lines)
    }
    frames = "".join(f"{at}{{transform:translateY({y}px)}}" for at, y in scrolled.items())
    last = f"transform:translateY({list(scrolled.values())[-1]}px)"
    rules.append(f"@keyframes l{{{frames}100%{{{last}}}}}.l{{{last};{animated('', whole)}}}")
    return f"""<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve"
    viewBox="0 0 {width} {height}">
<title>holdfast demo: a worker is killed, another takes over, every effect happened once</title>
<style>
text{{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}}
text{{fill:{PLAIN};white-space:pre}}
{NEW_LINE.join(rules)}
@media (prefers-reduced-motion:reduce){{g,text{{animation:none!important}}}}
</style>
<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>
<clipPath id="screen"><rect y="{MARGIN}" width="{width}" height="{ROWS * LINE}"/></clipPath>
<g clip-path="url(#screen)"><g class="l">
{NEW_LINE.join(body)}
</g></g>
</svg>
"""


def animated(number: int | str, seconds: float) -> str:
    """Return the property that runs an animation again and again, each state until the next."""
    return f"animation:l{number} {seconds:.1f}s step-end infinite"


def spans(text: Text) -> str:
    """Return a line's parts, each with its colour and at its own column."""
    parts: list[str] = []
    column = 0
    for part in text.divide(sorted({at for span in text.spans for at in (span.start, span.end)})):
        words = part.plain
        style = Style.combine([Style.null(), *(Style.parse(str(s.style)) for s in part.spans)])
        if words.strip():
            lead = len(words) - len(words.lstrip())
            words = words.strip(" ")
            x = MARGIN + (column + lead) * CHARACTER
            length = f'textLength="{len(words) * CHARACTER:.1f}"'
            parts.append(f'<tspan x="{x:.1f}" {length}{look(style)}>{escape(words)}</tspan>')
        column += len(part.plain)
    return "".join(parts)


def look(style: Style) -> str:
    """Return a part's attributes."""
    number = style.color.number if style.color else None
    colour = DIM if number is None and style.dim else COLOURS.get(number or 0)
    return (f' fill="{colour}"' if colour else "") + (' font-weight="bold"' if style.bold else "")


if __name__ == "__main__":
    program = str(Path(sys.executable).with_name("holdfast"))
    PICTURE.write_text(picture("holdfast demo", shorten(record([program, "demo"]))))
    print(PICTURE, PICTURE.stat().st_size, "bytes")
