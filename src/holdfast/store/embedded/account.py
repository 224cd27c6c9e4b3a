"""The operating system's account that the server runs as: PostgreSQL refuses to be root."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess, run

from holdfast.errors import EmbeddedServerError

_CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """Who the server's programs run as, when that is not who calls."""

    uid: int
    gid: int
    switches: bool

    def adopt(self, path: Path) -> None:
        """Give a file or directory to this account."""
        if self.switches:
            os.chown(path, self.uid, self.gid)

    def run(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        output: int,
        statements: str | None = None,
    ) -> CompletedProcess[str]:
        """Run a program as this account in a directory, and wait for it.

        The directory is entered before the account changes, so the account needs no right
        to the directories above it.
        """
        return run(
            command,
            cwd=directory,
            env=_environment(),
            input=statements or "",
            stdout=output,
            stderr=output,
            text=True,
            errors="replace",
            check=False,
            user=self.uid if self.switches else None,
            group=self.gid if self.switches else None,
            extra_groups=[] if self.switches else None,
        )


def account_for(data: Path) -> Account:
    """Choose the account: the caller's own, or for root the data's owner or a spare one.

    Raises:
        EmbeddedServerError: root calls, and the system has no other account to use.
    """
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), switches=False)
    if data.exists():
        status = data.stat()
        return Account(status.st_uid, status.st_gid, switches=True)
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid, switches=True)
    raise EmbeddedServerError(
        "PostgreSQL does not run as root, and this system has none of the accounts "
        f"{', '.join(_CANDIDATES)}: add one, or call as an ordinary user"
    )


def _environment() -> Mapping[str, str]:
    """Leave out what would point the server elsewhere or translate its messages."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "LC_", "LANG"))
    }
    return kept | {"LC_ALL": "C"}
