"""What the server is told about sessions for the code of others: when it ends one by itself.

The program of such a session may stop, or die with its machine, while the session holds locks.
"""

from __future__ import annotations

from typing import Final

from holdfast.database.parameters import Keepalive

# Three times as long as the code of a transaction may hold it open without a warning.
IDLE_SECONDS: Final = 30

# What was set for this in the URL, or for the role or the database, stays, and so does what is
# shorter. A provider's file may have a day.
_TELL: Final = """(
    select count(set_config(s.name, w.most::text, false))
    from pg_settings s join (values {values}) w (name, most) using (name)
    where s.source not in ('client', 'database user', 'user', 'database', 'global')
        and case s.vartype when 'integer' then s.setting::int not between 1 and w.most end)"""


def direct_question(process: int, keepalive: Keepalive | None = None) -> str:
    """Return a statement that has a row if `process` is that of the server itself.

    A pooler shows process ids of its own. With `keepalive` the session is told when the server
    ends it; one behind a pooler is not, because others will get it.
    """
    return f"select {_tell(keepalive) if keepalive else ''} where pg_backend_pid() = {process}"


def _tell(keepalive: Keepalive) -> str:
    limits = {"idle_in_transaction_session_timeout": IDLE_SECONDS * 1000}
    if keepalive.on:
        limits |= {
            "tcp_keepalives_idle": keepalive.idle_seconds,
            "tcp_keepalives_interval": keepalive.interval_seconds,
            "tcp_keepalives_count": keepalive.count,
            # The code may pause while it reads rows for as long as between two statements.
            "tcp_user_timeout": max(keepalive.user_timeout, IDLE_SECONDS * 1000),
        }
    return _TELL.format(values=", ".join(f"('{name}', {most})" for name, most in limits.items()))
