"""The store on PostgreSQL, through asyncpg: each method is one call of one SQL function.

Each capability is a part, one file: the method, its arguments and how its answer is read.
`store` composes the parts. `database` calls the functions and translates errors, over the
connections of `pool`.
"""

from holdfast.store.postgres.messages import ack_statement, send_statement
from holdfast.store.postgres.starts import Statement, start_statement
from holdfast.store.postgres.store import PostgresStore

__all__ = ["PostgresStore", "Statement", "ack_statement", "send_statement", "start_statement"]
