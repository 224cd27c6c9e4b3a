"""What code says of workflows is known to programs without the code."""

from __future__ import annotations

from holdfast.store.port import Store
from holdfast.types import CatalogueEntry


async def test_what_code_says_is_read_by_name(store: Store) -> None:
    buy = CatalogueEntry("shop/buy", 1, '{"type":"integer","title":"a\\u0000b"}', "Buy.")
    sell = CatalogueEntry("shop/sell", 3)
    await store.declare_catalogue([sell, buy])
    assert await store.read_catalogue(["shop/buy", "nobody", "shop/sell", "shop/buy"]) == {
        "shop/buy": buy,
        "shop/sell": sell,
    }
    assert await store.read_catalogue([]) == {}
    await store.declare_catalogue([])
    assert list(await store.read_catalogue(["shop/buy"])) == ["shop/buy"]


async def test_the_newest_version_counts(store: Store) -> None:
    """During a deployment workers of both sign on; the last of one version is believed."""
    for version, text, then in ((2, "b", "b"), (1, "a", "b"), (2, "c", "c"), (3, "d", "d")):
        await store.declare_catalogue([CatalogueEntry("shop/buy", version, f'"{text}"', text)])
        assert (await store.read_catalogue(["shop/buy"]))["shop/buy"].about == then
    await store.declare_catalogue([CatalogueEntry("shop/buy", 3)])
    assert await store.read_catalogue(["shop/buy"]) == {"shop/buy": CatalogueEntry("shop/buy", 3)}
