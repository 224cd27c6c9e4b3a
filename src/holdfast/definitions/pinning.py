"""The part of an app for its build: what its workers can run."""

from __future__ import annotations

from holdfast.definitions.workflows import Registry


class Pinning:
    """Names what an app's workers can run, of pinned workflows also with the build."""

    registry: Registry
    build: str | None

    def handlers(self) -> tuple[str, ...]:
        """Return what this program can run, as `app/name@version`; activities have version 0.

        With a build, pinned workflows stand there twice: also as `app/name@version+build`.
        """
        handlers = self.registry.handlers()
        if self.build is None:
            return handlers
        return handlers + tuple(f"{each}+{self.build}" for each in self.pinned())

    def pinned(self) -> tuple[str, ...]:
        """Return the workflows whose runs stay with their build, as `app/name@version`."""
        return tuple(each.handler for each in self.registry.workflows.values() if each.pinned)
