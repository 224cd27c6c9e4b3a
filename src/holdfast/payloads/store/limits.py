"""Limits, whose keys the database reads from inputs."""

from __future__ import annotations

from holdfast.payloads.store.part import PayloadPart
from holdfast.types import LimitRule


class PayloadLimits(PayloadPart):
    """Refuses limits by what the database cannot read."""

    async def set_limit(self, rule: LimitRule) -> bool:
        """Set a limit; see `LimitStore.set_limit`. Raises ConfigurationError for one with a key."""
        units = None if rule.units == "call" else rule.units
        self.payloads.check_keys(f"{rule.scope} {rule.name}", rule.key, units)
        return await self._store.set_limit(rule)
