"""Check the words of code, docs and tests: one word per concept, and plain English.

    python scripts/check_words.py             # fail where a rule is broken
    python scripts/check_words.py --report    # count by rule and folder

A rule is a row of `RULES`: what must not be written, what to say instead, and why. A place that
must break a rule stands in `EXCEPTIONS` with its reason.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDERS: Final = (
    *("src", "docs", "tests", "examples", "benchmarks", "scripts"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
)
SUFFIXES: Final = (".py", ".sql", ".md")
# Made of sources that are checked, or the list of words itself.
LEFT_OUT: Final = (
    "docs/reference/api/",
    "docs/reference/cli/",
    "src/holdfast/sync/",
    "scripts/check_words.py",
    "tests/unit/test_check_words.py",
    "benchmarks/RESULTS.md",
)


class Rule(NamedTuple):
    """Something that must not be written, which says `what` or one of its parts around `|`.

    `pattern` tells which uses of these words are meant, by default all; it sees one line. `only`
    limits the rule to paths that begin so.
    """

    what: str
    say: str
    why: str
    pattern: str = ""
    only: tuple[str, ...] = ()


CODE: Final = ("src/", "benchmarks/", "scripts/")

# fmt: off
RULES: Final = (
    # One word per concept, in names too.
    Rule("order", "command", "four concepts had the name",
         r"(?<!from )\borders\b(?! by| it)|(?<![a-z])Orders?[A-Z]|p_ordering|\ban order\b"
         r"|\bORDERS\b|orders?_", ("src/",)),
    Rule("heir", "successor; open descendants", "two opposite things had the name"),
    Rule("settle", "resolve, deliver_end, finish, flush",
         "fifteen functions of this name did different things", only=("src/",)),
    Rule("lane", "Batcher; a range", "two concepts had the name"),
    Rule("guest", "external", "the word of the architecture"),
    Rule("questions", "queries", "reads of a store are queries",
         r"questions[._]|Questions[A-Z(:]", ("src/", "tests/")),
    Rule("feeder", "Replayer", "a metaphor"),
    Rule("clockwork", "Timers", "a metaphor"),
    Rule("dealings", "name the parts", "a metaphor"),
    Rule("nobody", "ClosedCaller", "a metaphor",
         r"\bNobody\b|\bNOBODY\b", ("src/holdfast/runtime",)),
    Rule("linger", "must_stay_open", "a metaphor"),
    Rule("grown", "due_for_recording", "say what it means", r"grown[(_:]", ("src/",)),
    Rule("hurry|hurried", "end_grace", "a metaphor"),
    Rule("rested", "idle", "a metaphor"),
    Rule("call off|calls off|called off|call_off|called_off", "cancel, request_cancel",
         "cancel is the word of asyncio and of the field"),
    Rule("news", "unread", "it is what was not read yet", only=("src/",)),
    Rule("current_step().id", "current_step().idempotency_key", "renamed", r"\.id\b"),
    Rule("ctx.set(", "ctx.set_value(", "renamed", r"\bctx\.set\("),
    Rule("client.runs()", "client.runs.iterate(…) to loop over all, client.runs.list(…) for a page",
         "renamed", r"\.runs\(\)"),
    # Plain English.
    Rule("say whether|says whether", "Return True if …", "begin with what is returned"),
    Rule("is no |are no |was no |were no ", "is not a …", "the usual form is read faster",
         r"(?<!here )\b(?:is|are|was|were) no (?!more\b|longer\b|matter\b)\w"),
    Rule("go on|goes on|going on|went on", "continue", "the plain verb",
         r"\b(?:go|goes|going|went) on\b(?! to)"),
    Rule("whoever", "the program, the transaction, the worker that …", "who is it?"),
    Rule("somebody", "a person, another program, another transaction", "who is it?"),
    Rule("everybody", "all workers, all clients", "who is it?"),
    Rule("he ", "it, they", "a program is not a person", r"\b[Hh]e\b(?! \w*[=:])", CODE),
    Rule("none that", "no live worker, no open run", "inverted clause"),
    Rule("stays whose|goes whose|waits whose|ends whose|left out whose",
         "put the relative clause beside its noun", "inverted clause"),
    Rule("takes no ", "unexpected …; does not take", "inverted clause", r"takes no \{", ("src/",)),
    Rule("ever later|ever more seldom", "with growing pauses", "unusual"),
    Rule("anew", "again, from the start", "a rare word"),
    Rule("wherever|thereof|thereby", "name the places", "rare words"),
    Rule("in the meantime|in the mean time", "meanwhile", "one word does"),
)
# fmt: on

DOCSTRING: Final = Rule(
    "docstring",
    "begin with a verb for what is returned or done: Return, Wait, Start",
    "the first word says what a call is for",
    only=("src/",),
)
_NO_VERB: Final = re.compile(
    r'^[ \t]+"""(?:What|Who|Whose|Whether|Which|How|When|Where|Says|Nothing|Takes|Gives|A|An|The)'
    r"\b",
    re.MULTILINE,
)
_DEF: Final = re.compile(r"^\s*(?:async def|def|class)\b")

# (path, a part of the line) -> why it must be so
EXCEPTIONS: Final[dict[tuple[str, str], str]] = {
    ("tests/proxy.py", "SO_LINGER"): "the name of a socket option",
    ("src/holdfast/sql/functions/workers/leases.sql", "news"): (
        "workers of an earlier release read this column of heartbeat by its name"
    ),
    ("src/holdfast/store/postgres/workers.py", 'row["news"]'): "the same column, read here",
    ("tests/unit/test_webhooks.py", "Secret to Everybody"): "an example of GitHub's documentation",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A place that breaks a rule."""

    rule: Rule
    path: str
    line: int
    text: str

    @property
    def folder(self) -> str:
        """The room of a source file, the second folder of a page or a test, else the top folder."""
        parts = self.path.split("/")
        depth = {"src": 3, "docs": 2, "tests": 2}.get(parts[0], 1)
        return "/".join(parts[:depth])


def findings() -> Iterator[Finding]:
    """Check every file."""
    rules = [(rule, rule.what.split("|"), re.compile(rule.pattern or word(rule))) for rule in RULES]
    for path in files():
        text = (ROOT / path).read_text()
        lower = text.lower()
        for rule, words, pattern in rules:
            if rule.only and not path.startswith(rule.only):
                continue
            for at in lines_with(lower, words):
                finding = found(rule, path, text, at)
                if pattern.search(finding.text):
                    yield finding
        if path.endswith(".py") and path.startswith(DOCSTRING.only):
            yield from docstrings(path, text)


def word(rule: Rule) -> str:
    """Return the pattern of a rule's words, also as parts of names such as `_heirs`."""
    return rf"(?i:(?<![a-z])(?:{rule.what})(?:s|d|ed)?(?![a-z]))"


def lines_with(lower: str, words: list[str]) -> Iterator[int]:
    """Return a place in each line that has one of the words. Much faster than patterns."""
    for each in words:
        at = lower.find(each)
        while at >= 0:
            yield at
            end = lower.find("\n", at)
            at = lower.find(each, end) if end >= 0 else -1


def files() -> list[str]:
    """Return the paths of the files that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *FOLDERS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(
        path
        for path in set(listed.stdout.splitlines())
        if path.endswith(SUFFIXES) and not path.startswith(LEFT_OUT) and (ROOT / path).exists()
    )


def docstrings(path: str, text: str) -> Iterator[Finding]:
    """Find docstrings of functions that do not begin with a verb. Properties may be nouns."""
    for match in _NO_VERB.finditer(text):
        above = text[: match.start()].splitlines()
        start = next((n for n in range(len(above) - 1, -1, -1) if _DEF.match(above[n])), None)
        if start is None or above[start].lstrip().startswith("class"):
            continue
        ends_here = above[-1].rstrip().endswith(":")
        decorated = start > 0 and "property" in above[start - 1]
        if ends_here and not decorated:
            yield found(DOCSTRING, path, text, match.start())


def found(rule: Rule, path: str, text: str, at: int) -> Finding:
    """Return a finding with the line that it is on."""
    begin = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line = text[begin : None if end < 0 else end]
    return Finding(rule, path, text.count("\n", 0, at) + 1, line.strip())


def is_excepted(finding: Finding) -> bool:
    """Return True if the place stands in EXCEPTIONS."""
    return any(finding.path == path and part in finding.text for path, part in EXCEPTIONS)


def report(found: list[Finding]) -> None:
    """Print how often each folder breaks each rule."""
    counts = Counter((finding.rule.what, finding.folder) for finding in found)
    for name in dict.fromkeys(rule.what for rule in (*RULES, DOCSTRING)):
        folders = sorted((folder, n) for (rule, folder), n in counts.items() if rule == name)
        total = sum(n for _, n in folders)
        print(f"{name:30.30}{total:5}  " + "  ".join(f"{folder} {n}" for folder, n in folders))


def main() -> int:
    """Print what breaks a rule; return 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="count by rule and folder")
    options = parser.parse_args()
    broken = [finding for finding in findings() if not is_excepted(finding)]
    if options.report:
        report(broken)
        return 0
    for finding in broken:
        rule = finding.rule
        print(f"{finding.path}:{finding.line}: {finding.text}")
        print(f"    {rule.what}: say {rule.say} ({rule.why})")
    if broken:
        print(f"{len(broken)} place(s) break the rules of scripts/check_words.py", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
