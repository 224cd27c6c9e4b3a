"""The store on PostgreSQL, through asyncpg: each method is one call of one SQL function.

`connections` reaches the server, `errors` translates what it refuses, `arrays` turns values
into the functions' parameters, `rows` turns their answers into values. `starting`, `leasing`,
`committing`, `guests`, `questions` and `listening` are the methods, `store` wires them.
"""

from holdfast.store.postgres.arrays import Statement, start_statement
from holdfast.store.postgres.store import PostgresStore

__all__ = ["PostgresStore", "Statement", "start_statement"]
