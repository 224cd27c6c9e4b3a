"""Findings about builds for `doctor`, and the words for the outcomes of moves."""

from __future__ import annotations

from typing import Final

from holdfast.insight.actions import Action
from holdfast.insight.findings import Finding
from holdfast.insight.wording import several
from holdfast.store.port import Store
from holdfast.types import BuildInfo, MoveOutcome

MOVE_TEXTS: Final[dict[MoveOutcome, str]] = {
    "moved": "moved",
    "same": "it was there already",
    "missing": "there is no such run",
    "flow": "it is a run of a flow, which has no build",
    "unknown": "no worker of this build of its app has ever signed on",
    "unfit": "the build does not have its workflow pinned in its version",
}


async def check_builds(store: Store) -> list[Finding]:
    """Check that builds which runs stay with or get have workers; nothing without builds."""
    builds = await store.list_builds()
    if not builds:
        return []
    several_apps = len({each.app for each in builds}) > 1
    findings: list[Finding] = []
    left = [each for each in builds if each.open_runs and not each.workers]
    if left:
        parts = [f"{_text(each)} ({several(each.open_runs, 'open run')})" for each in left]
        app = left[0].app if several_apps else ""
        findings.append(
            Finding(
                "builds",
                "warn",
                f"no live worker of {', '.join(parts)}",
                "or start one",
                Action("move_build", name=left[0].build, app=app),
            )
        )
    gets = [each for each in builds if each.is_current or each.ramp_percent is not None]
    idle = [_text(each) for each in gets if each.lacks_workers and each not in left]
    if idle:
        findings.append(
            Finding(
                "builds",
                "warn",
                f"new runs of pinned workflows get {', '.join(idle)}, which has no live worker",
                "start one, or let them get another build: holdfast builds promote BUILD",
            )
        )
    ok = Finding("builds", "ok", "each build with open runs has a live worker")
    return findings or [ok]


def _text(build: BuildInfo) -> str:
    return f"build {build.build} of app {build.app}"
