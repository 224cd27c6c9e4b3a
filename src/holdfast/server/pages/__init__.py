"""The dashboard: pages for people, made on the server from what insight and the client know."""

from holdfast.server.pages.dispatch import routes

__all__ = ["routes"]
