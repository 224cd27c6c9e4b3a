"""The operating system's account that the server runs as: PostgreSQL refuses to be root."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, CompletedProcess, run

from holdfast.errors import EmbeddedServerError

_CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Location:
    """A directory's path, and the descriptors that a process needs to follow it."""

    path: str
    descriptors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Account:
    """The account that the server's programs run as, if it is not the caller's."""

    uid: int
    gid: int
    switches: bool

    def adopt(self, path: Path) -> None:
        """Give a file or directory to this account."""
        if self.switches:
            os.chown(path, self.uid, self.gid)

    @contextmanager
    def location_of(self, directory: Path) -> Generator[Location]:
        """Name a directory so that this account can open it, whatever lies above.

        Below a home that only root can enter, the path is closed to the account, and an
        open descriptor is not.
        """
        if not self.switches or sys.platform != "linux":
            yield Location(str(directory))
            return
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield Location(f"/proc/self/fd/{descriptor}", (descriptor,))
        finally:
            os.close(descriptor)

    def run(
        self,
        command: Sequence[str],
        *,
        output: int,
        source: int = DEVNULL,
        descriptors: Sequence[int] = (),
    ) -> CompletedProcess[str]:
        """Run a program as this account and wait for it.

        Args:
            command: the program and its arguments.
            output: where its output and its errors go, as for `subprocess`.
            source: where its input comes from, as for `subprocess`.
            descriptors: what it inherits besides.
        """
        return run(
            command,
            cwd="/",
            env=_environment(),
            stdin=source,
            stdout=output,
            stderr=output,
            text=True,
            errors="replace",
            check=False,
            pass_fds=descriptors,
            # Ctrl-C is the caller's; the server outlives it or is stopped in good order.
            start_new_session=True,
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
