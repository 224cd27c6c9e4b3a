"""`holdfast doctor` as a page."""

from __future__ import annotations

from holdfast.server.checking import examine_site
from holdfast.server.pages.view import Page, View


async def doctor(view: View) -> Page:
    """Return what all checks find."""
    return Page(
        template="doctor.html",
        title="Doctor",
        place="/doctor",
        values={"findings": await examine_site(view.site)},
    )
