"""Durable workflows for Python on PostgreSQL."""

from holdfast._version import __version__

__all__ = ["__version__"]
