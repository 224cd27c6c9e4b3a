"""The files with what opens the server: the key of this machine, and tokens of many callers."""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Final, cast

from starlette.requests import Request

from holdfast.errors import ConfigurationError
from holdfast.server.access import LEVELS, Level, Principal, bearer, digest, read_limits, refused
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.server")

KEY_NAME: Final = "server.key"
_BYTES: Final = 32
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")


def new_token() -> str:
    """Return a token that nobody can guess."""
    return f"hf_{secrets.token_urlsafe(_BYTES)}"


def machine_key(home: Path) -> str:
    """Return the key in a data home, which only its owner can read; make it if it is missing.

    Raises ConfigurationError for a file that others can read.
    """
    path = home / KEY_NAME
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = home / f"{KEY_NAME}.{os.getpid()}.{secrets.token_hex(4)}"
    if not path.exists():
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(new_token() + "\n")
            os.link(draft, path)  # whole, and the first of several processes wins
        except FileExistsError:
            pass
        finally:
            draft.unlink(missing_ok=True)
    check_private(path)
    key = path.read_text().strip()
    if not key:
        raise ConfigurationError(f"{path} is empty: delete it, and a new key is made")
    return key


def check_private(path: Path) -> os.stat_result:
    """Refuse a file that others can read. Raises ConfigurationError."""
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigurationError(f"others can read {path}: `chmod 600 {path}`")
    return found


class TokenAccess:
    """Tokens of a file: lines of a name, a level, the SHA-256 of the token, and what it may see.

    A file that has changed is read again, so a line that is removed closes at once.
    """

    def __init__(self, path: Path) -> None:
        """Read the file. Raises ConfigurationError for one that cannot be used."""
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._fault = ""  # what is wrong with the file, once it was logged
        self._entries: dict[str, tuple[Principal, str]] = {}
        self._known: dict[tuple[Principal, str], tuple[Principal, str]] = {}
        self._read()

    async def principal(self, request: Request) -> Principal:
        """Return whose token it is. Raises Problem 401."""
        found = self.of_token(bearer(request))
        if found is None:
            raise refused("the token is not known")
        return found

    def of_token(self, token: str) -> Principal | None:
        """Return who has a token. All entries are compared, however early one fits."""
        self._read()
        wanted, found = digest(token), None
        for principal, known in self._entries.values():
            if hmac.compare_digest(wanted, known):
                found = principal
        return found

    def still(self, principal: Principal) -> bool:
        """Return True while the line of this principal is as it was, the token too."""
        self._read()
        entry = self._entries.get(principal.name)
        return entry is not None and entry[0] is principal

    def holder(self, name: str) -> tuple[Principal, str] | None:
        """Return who has this name, with the digest of the token; for sessions of browsers."""
        self._read()
        return self._entries.get(name)

    def _read(self) -> None:
        """Read the file if it has changed. A file that cannot be used opens nothing."""
        try:
            found = check_private(self._path)
            seen = (found.st_mtime_ns, found.st_size, found.st_ino)
            if seen != self._seen:
                entries = read_tokens(self._path)
                # Equal lines have one principal, those of another token another one: see `still`.
                self._entries = {
                    name: self._known.setdefault(each, each) for name, each in entries.items()
                }
                self._seen, self._fault = seen, ""
        except ConfigurationError as error:
            if self._seen is None:
                raise
            self._entries, self._seen = {}, (0, 0, 0)
            if self._fault != str(error):
                self._fault = str(error)
                logger.error("no token is accepted, as the file of tokens is wrong: %s", error)


def read_tokens(path: Path) -> dict[str, tuple[Principal, str]]:
    """Return whose tokens a file has, with their digests, by name. Raises ConfigurationError."""
    entries: dict[str, tuple[Principal, str]] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:  # removed just now, or not UTF-8
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        right = len(parts) >= 3 and parts[1] in LEVELS and _DIGEST.fullmatch(parts[2])
        if not right or parts[0] in entries:
            raise ConfigurationError(
                f"{path}, line {number}: write a name of its own, {', '.join(LEVELS)}, and the "
                "digest that `holdfast server token` wrote"
            )
        try:
            only, payloads = read_limits(parts[3:])
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}, line {number}: {error}") from None
        principal = Principal(parts[0], cast("Level", parts[1]), only, payloads)
        entries[parts[0]] = principal, parts[2].lower()
    return entries
