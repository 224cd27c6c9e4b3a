"""The database below the stores: which one it is, how it is reached, and what schema it has.

`resolve` finds the database, `urls` and `parameters` read its URL, `connection` opens a
connection. `embedded` starts a private PostgreSQL, `keeping` restarts it if it dies. `scripts`
reads the SQL files, `schema` compares them with what is applied, `migrate` applies them, and
`grants` gives other roles their rights.
"""
