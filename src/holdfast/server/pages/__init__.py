"""The dashboard: pages for people, made on the server from what insight and the client know."""

from holdfast.server.pages.dispatch import nowhere, routes

__all__ = ["nowhere", "routes"]
