"""What libpq is given, so that psycopg connects as the store does."""

from __future__ import annotations

from typing import Any

from holdfast.database.urls import Target


def conninfo(target: Target) -> dict[str, Any]:
    """Return what libpq is given to connect as the store does."""
    parameters = target.parameters
    settings = dict(parameters.settings)
    written = [settings.pop("options", "")]  # the server reads them as they are
    written += [f"-c {name}={_escaped(value)}" for name, value in settings.items()]
    given: dict[str, Any] = {
        **parameters.driver,
        "host": ",".join(host for host, _ in target.hosts),
        "port": ",".join(str(port) for _, port in target.hosts),
        "user": target.user,
        "password": target.password,
        "dbname": target.database,
        "options": " ".join(filter(None, written)),
        "application_name": parameters.settings.get("application_name", "holdfast"),
        "connect_timeout": max(1, round(parameters.connect_seconds)),
    }
    keepalive = parameters.keepalive
    if not keepalive.on:
        given["keepalives"] = 0
    else:
        given |= {
            "keepalives_idle": keepalive.idle_seconds,
            "keepalives_interval": keepalive.interval_seconds,
            "keepalives_count": keepalive.count,
            "tcp_user_timeout": keepalive.user_timeout,
        }
    if parameters.attributes != "any":
        given["target_session_attrs"] = parameters.attributes
    return {name: value for name, value in given.items() if value not in (None, "")}


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
