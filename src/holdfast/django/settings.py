"""What the settings of a site import: the database of the site, from a URL."""

from __future__ import annotations

import atexit
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict

from holdfast.database.resolve import Source, resolve_database
from holdfast.errors import ConfigurationError

EMBEDDED: Final = "EMBEDDED"  # in an entry of DATABASES; Django leaves it alone


def database(url: str | None = None) -> dict[str, Any]:
    """Return an entry of `DATABASES`: of a URL, else of `$HOLDFAST_DATABASE_URL`, `$DATABASE_URL`.

    Without any it is the embedded PostgreSQL, which runs as long as this process or another uses
    it.

    ```python
    DATABASES = {"default": database()}
    ```
    """
    found = resolve_database(url)
    if found.shards:
        raise ConfigurationError(
            "a site has one database, and several are named: give Django the URL of its own"
        )
    atexit.register(found.close)
    given: dict[str, Any] = conninfo_to_dict(found.url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host"}
    known = {name: given.pop(option, "") for name, option in (*names.items(), ("PORT", "port"))}
    embedded = {EMBEDDED: True} if found.source is Source.EMBEDDED else {}
    return {"ENGINE": "django.db.backends.postgresql", **known, **embedded, "OPTIONS": given}
