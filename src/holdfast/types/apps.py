"""Apps, the namespaces of workflows and activities, as a database knows them."""

from __future__ import annotations

from holdfast.types.base import DEFAULT_PRIORITY, DEFAULT_QUEUE, Value


class AppInfo(Value, frozen=True, kw_only=True):
    """An app whose workers have signed on, and the names of the workflows that it ever had.

    `origin` is the directory of its code; it is recorded only on the embedded database.
    """

    app: str
    workflows: tuple[str, ...]
    origin: str | None = None
    signed_on_at: int = 0


class CatalogueEntry(Value, frozen=True):
    """What code says of a workflow or a flow, `app/name`: the schema of its input, and its docs.

    `input_schema` is JSON text, None if the type of the input has no schema.
    """

    name: str
    version: int
    input_schema: str | None = None
    about: str = ""


class DeclaredOptions(Value, frozen=True):
    """What the code of a workflow or a flow, `app/name`, says for starts that leave it out.

    Times are in seconds. Ended runs are kept for `retention_seconds`; a timeout of None is no
    limit.
    """

    name: str
    version: int
    retention_seconds: float
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    timeout_seconds: float | None = None
