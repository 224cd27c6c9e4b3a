"""`holdfast init`: write a small project that runs at once."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import click

from holdfast.cli.framework import FilePath, command


@dataclass(frozen=True)
class Starter:
    """A kind of project: what it is, the templates that it has, and what else it needs."""

    description: str
    files: dict[str, str]  # the template of each file; all have those of `common`, too
    dependencies: tuple[str, ...] = ("holdfast",)
    folder: str | None = None  # where it is not the kind

    @property
    def packages(self) -> set[str]:
        """The packages that the project imports: it can have the name of none of them."""
        return set(re.findall(r"\w+", " ".join(self.dependencies)))


def _own(kind: str) -> dict[str, str]:
    return {name: f"{kind}/{name}" for name in ("workflows.py", "test_workflows.py")}


_SITE = (
    "manage.py",
    "settings.py",
    "urls.py",
    "workflows.py",
    "wsgi.py",
    "shop/__init__.py",
    "shop/migrations/0001_initial.py",
    "shop/migrations/__init__.py",
    "shop/models.py",
    "shop/tasks.py",
    "shop/tests.py",
    "shop/views.py",
    "compose.yaml",
    "pyproject.toml",
    "README.md",
    "AGENTS.md",
)

STARTERS = {
    "agent": Starter("An agent that asks before it spends money.", _own("agent")),
    "shop": Starter("An order that is charged, packed, and refunded if need be.", _own("shop")),
    "etl": Starter("A pipeline that the database drives.", _own("etl")),
    "django": Starter(
        "A site that leaves work for later.",
        {file: f"django/{file}" for file in _SITE},
        ("holdfast[django]", "gunicorn"),
        "site",
    ),
    "fastapi": Starter(
        "A shop over HTTP.",
        {**_own("shop"), "api.py": "fastapi/api.py"},
        ("holdfast", "fastapi", "uvicorn"),
        "web",
    ),
    "jobs": Starter("A job, a message queue, and work by the clock.", _own("jobs")),
}
_NAME = re.compile(r"[A-Za-z](\w*[A-Za-z0-9])?", re.ASCII)
_COMMON = ("pyproject.toml", "compose.yaml", "README.md", "AGENTS.md", ".gitignore")


@command(
    "init",
    examples=(
        "holdfast init shop                a project in the folder shop",
        "holdfast init agent travel        the same of another kind, in the folder travel",
        "mkdir mails && cd mails && holdfast init jobs .",
    ),
)
@click.argument("kind", type=click.Choice(list(STARTERS)))
@click.argument("folder", type=FilePath(path_type=Path), required=False)
def init(kind: str, folder: Path | None) -> None:
    """Write a small project: workflows, their tests, a Compose file, a README, and an AGENTS.md.

    KIND is what it begins with: an agent, a shop, a pipeline, a shop over HTTP, jobs, or a site of
    Django. The name of FOLDER is that of the project and of its app. By default it is KIND; for
    fastapi, web; for django, site. A folder that has files is refused.
    """
    starter = STARTERS[kind]
    folder = Path(starter.folder or kind) if folder is None else folder
    name = folder.resolve().name
    if not _NAME.fullmatch(name) or name in starter.packages:
        raise click.BadParameter(
            f"{name!r} cannot be the name of the project: it has letters, digits and _, begins "
            "with a letter, and is not that of a package which the project uses",
            param_hint="FOLDER",
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise click.BadParameter(f"{folder} is there, and is not empty", param_hint="FOLDER")
    _write(folder, _files(kind, name))
    click.echo(f"{folder} has a project: read {folder / 'README.md'}")


def _files(kind: str, name: str) -> dict[str, str]:
    """Return the text of each file."""
    from holdfast.docs import SKILL, read_page, without_links

    starter = STARTERS[kind]
    templates = resources.files("holdfast.cli") / "starters"
    sources = {**{each: f"common/{each}" for each in _COMMON}, **starter.files}
    files = {
        file: (templates / f"{source}.txt").read_text("utf-8") for file, source in sources.items()
    }
    modules = [
        file.removesuffix(".py")
        for file in starter.files
        if file.endswith(".py") and "/" not in file and not file.startswith("test_")
    ]
    replaced = {
        "COMMANDS\n": (templates / kind / "COMMANDS.txt").read_text("utf-8"),
        "SKILL\n": without_links(read_page(SKILL)),
        "DESCRIPTION": starter.description,
        "DEPENDENCIES": ", ".join(f'"{each}"' for each in starter.dependencies),
        "MODULES": ", ".join(f'"{each}"' for each in modules),
        "NAME": name,
    }
    for old, new in replaced.items():
        files = {file: text.replace(old, new) for file, text in files.items()}
    return files


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write all files, or none."""
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        for each in (
            folder.iterdir() if folder.is_dir() else ()
        ):  # it was empty: all are written here
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        if made and folder.is_dir():
            folder.rmdir()
        raise click.UsageError(f"{folder} cannot be written: {error.strerror}") from None
