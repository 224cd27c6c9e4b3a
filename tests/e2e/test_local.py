"""A program with a worker of its own: `holdfast.local`."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import App, Context, local

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", [str, Path])
async def test_the_data_directory_is_a_path_or_its_text(
    tmp_path: Path, kind: type[str] | type[Path]
) -> None:
    app = App("shop")

    @app.workflow
    async def double(ctx: Context, number: int) -> int:
        return 2 * number

    async with local(app, data=kind(tmp_path / "home")) as client:
        assert await client.run(double, 4, wait="30s") == 8
    assert (tmp_path / "home").is_dir()
