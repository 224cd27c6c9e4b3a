"""The SQL files of the engine, and their two rewritings: settings of functions, the schema's name.

The rules that the files keep, so that any schema can hold them, and that psql alone can apply what
`migrate.render` makes of them:

- `migrations/NNNN_name.sql` is one transaction: a line `begin;`, the migrations' advisory
  lock, its own row for `schema_migrations`, its statements, a last line `commit;`. Applied
  a second time, that row is a duplicate key, and nothing happens.
- `functions/CAPABILITY/*.sql` holds `create or replace function holdfast.…` and may be applied
  again at any time. The folders are applied in the order of `FOLDERS`, the files of one by name:
  what SQL functions of a folder refer to stands in an earlier folder or file. The head of a
  function whose body is a text says only what differs from `SETTINGS`: `complete` adds the rest.
- The bare word `holdfast` is the schema and nothing else. In quotes it is never rewritten:
  settings ('holdfast.fake_now') and lock names are the same for every schema. Dynamic SQL
  that names the schema is therefore dollar-quoted.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from holdfast import sql
from holdfast.errors import InvalidSchemaName, MigrationFailed

DEFAULT_SCHEMA = "holdfast"

# The folders of the repeatable functions, in the order in which they are applied.
FOLDERS: Final = (
    "attributes", "core", "workers", "activities", "approvals", "children", "signals", "shards",
    "streams", "transactions", "webhooks", "rules", "topics", "limits", "control", "builds",
    "forks", "queries", "stats", "alerts", "flows", "schedules", "payloads", "retention", "queues",
)  # fmt: skip

# The settings of functions whose body is a text, by language; `immutable` ones read no table. A
# `set` in a function's head replaces one of them, a `reset` takes one away.
SETTINGS: Final = {
    "plpgsql immutable": {"search_path": "pg_catalog, pg_temp", "jit": "off"},
    "sql": {"search_path": "pg_catalog, pg_temp", "jit": "off"},
    "plpgsql": {
        "search_path": "pg_catalog, pg_temp",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "jit": "off",
    },
}

_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_RESERVED_SCHEMAS = frozenset({"information_schema", "public"})
_NAME = re.compile(r"\bholdfast\.(\w+)")
_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_TRANSACTION = re.compile(r"^begin;\n(.*)^commit;\s*\Z", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"^create or replace (?:function|procedure) holdfast\.(\w+)", re.MULTILINE)
_PARAMETER = re.compile(r"(?:^|,)\s*(?:p_)?(\w+) [a-z]")
_HEAD = re.compile(
    r"(?P<line>\nlanguage (?P<language>plpgsql immutable|\w+)[^\n]*)"
    r"(?P<clauses>(?:\n(?:set|reset) [^\n]*)*)(?=\nas \$)"
)
_TOKEN = re.compile(
    r"""
      --[^\n]*
    | /\*.*?\*/
    | \b[eE]'(?:[^'\\]|\\.|'')*'
    | '(?:[^']|'')*'
    | "[^"]*"
    | (?P<schema>\bholdfast\b)
    """,
    re.VERBOSE | re.DOTALL,
)


class Migration(msgspec.Struct, frozen=True):
    """One numbered file: tables, types, indexes, constraints."""

    version: int
    name: str
    text: str

    @property
    def body(self) -> str:
        """The file without its `begin;` and `commit;`, for a transaction already open."""
        found = _TRANSACTION.search(self.text)
        if found is None:
            raise MigrationFailed(
                f"{self}: not one transaction between the lines `begin;` and `commit;`"
            )
        return found[1]

    def __str__(self) -> str:
        return f"{self.version:04}_{self.name}"


class FunctionFile(msgspec.Struct, frozen=True):
    """One repeatable file, complete; its name is `folder/file.sql`."""

    name: str
    text: str


class Scripts(msgspec.Struct, frozen=True, dict=True):
    """All SQL files of one release, in the order in which they are applied.

    What is made of a megabyte of text is kept: each store that is opened asks for it.
    """

    migrations: tuple[Migration, ...]
    functions: tuple[FunctionFile, ...]

    @functools.cached_property
    def versions(self) -> frozenset[int]:
        """The numbers of the migrations."""
        return frozenset(migration.version for migration in self.migrations)

    @functools.cached_property
    def function_names(self) -> tuple[str, ...]:
        """The names of all functions that the repeatable files define, sorted."""
        names = {name for file in self.functions for name in _FUNCTION.findall(file.text)}
        return tuple(sorted(names))

    def parameters(self, function: str) -> list[str]:
        """Return the names of the parameters of a function, as callers know them: without `p_`."""
        text = rf"^create or replace function holdfast\.{function}\((.*?)\)\s+(?:returns|language)"
        head = re.compile(text, re.MULTILINE | re.DOTALL)
        found = next(filter(None, (head.search(file.text) for file in self.functions)), None)
        return [] if found is None else _PARAMETER.findall(found[1])

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The names of all that the files make, and of all else that they name in the schema."""
        return named_by(self.migrations).union(self.function_names)

    @functools.cached_property
    def checksum(self) -> str | None:
        """A digest of the repeatable files, which changes with any of them; None without any."""
        if not self.functions:
            return None
        digest = hashlib.sha256()
        for file in self.functions:
            digest.update(f"{file.name}\0{file.text}\0".encode())
        return digest.hexdigest()


def named_by(migrations: Sequence[Migration]) -> frozenset[str]:
    """Return the names of the tables, indexes, sequences and functions that migrations name."""
    return frozenset(name for each in migrations for name in _NAME.findall(each.body))


@functools.cache
def load_scripts(directory: Path | None = None) -> Scripts:
    """Read the SQL files of the package, or of a directory laid out like it.

    Raises:
        MigrationFailed: a migration is misnamed, two have one number, or a file of functions is
            in no folder of `FOLDERS`.
    """
    root = directory or Path(sql.__path__[0])
    migrations = tuple(_read_migration(path) for path in sorted(root.glob("migrations/*.sql")))
    if len({migration.version for migration in migrations}) != len(migrations):
        raise MigrationFailed(f"two migrations in {root} have the same number")
    return Scripts(migrations, _read_functions(root / "functions"))


def check_schema_name(schema: str) -> str:
    """Return a schema's name if it is safe to write into SQL.

    Raises:
        InvalidSchemaName: it is not a plain lower-case identifier, or is PostgreSQL's own.
    """
    # Callers without a type checker pass anything.
    if not isinstance(schema, str) or not _SCHEMA_NAME.fullmatch(schema):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSchemaName(
            f"{schema!r} cannot be a schema's name here: use 1 to 63 of a-z, 0-9 and _, "
            "not starting with a digit"
        )
    if schema in _RESERVED_SCHEMAS or schema.startswith("pg_"):
        raise InvalidSchemaName(
            f"the schema {schema!r} is one that PostgreSQL uses or that all roles share: "
            "choose one of your own"
        )
    return schema


def complete(text: str) -> str:
    """Return functions with all of their settings: those of their heads, and of `SETTINGS`."""
    return _HEAD.sub(_with_settings, text)


def in_schema(text: str, schema: str) -> str:
    """Rewrite SQL that is written for the schema `holdfast` for another schema.

    Raises:
        InvalidSchemaName: as `check_schema_name`.
    """
    if check_schema_name(schema) == DEFAULT_SCHEMA:
        return text
    return _TOKEN.sub(lambda token: f'"{schema}"' if token["schema"] else token[0], text)


def _read_functions(root: Path) -> tuple[FunctionFile, ...]:
    names = [path.relative_to(root).as_posix() for path in root.rglob("*.sql")]
    for name in names:
        if name.rpartition("/")[0] not in FOLDERS:
            raise MigrationFailed(
                f"functions/{name}: the folders of functions are {', '.join(FOLDERS)}"
            )
    names.sort(key=lambda name: (FOLDERS.index(name.partition("/")[0]), name))
    return tuple(
        FunctionFile(name, complete((root / name).read_text(encoding="utf-8"))) for name in names
    )


def _with_settings(head: re.Match[str]) -> str:
    defaults = SETTINGS.get(head["language"], {})
    clauses = {name: f"set {name} = {value}" for name, value in defaults.items()}
    for clause in head["clauses"].splitlines()[1:]:
        if clause.startswith("reset"):
            for name in re.findall(r"reset (\w+)", clause):
                del clauses[name]
        else:
            clauses[clause.split()[1]] = clause
    return "\n".join((head["line"], *clauses.values()))


def _read_migration(path: Path) -> Migration:
    found = _FILE_NAME.fullmatch(path.name)
    if found is None:
        raise MigrationFailed(f"{path}: a migration is named NNNN_name.sql")
    return Migration(int(found[1]), found[2], path.read_text(encoding="utf-8"))
