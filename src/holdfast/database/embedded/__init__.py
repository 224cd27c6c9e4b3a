"""PostgreSQL without an installation: a private server that its clients start and stop.

Everything lies under one directory, the data home:

    postgres/       the server's data, and its socket
    postgres.log    what the server says
    start.lock      held exclusively while the server is set up, started or stopped
    clients.lock    held shared by every client; the one that can hold it alone stops the server
"""

from holdfast.database.embedded.server import EmbeddedServer, default_home, is_made

__all__ = ["EmbeddedServer", "default_home", "is_made"]
