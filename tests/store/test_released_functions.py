"""The functions that workers, servers and clients of 0.1.0 call: they work on after a migration."""

from __future__ import annotations

from pathlib import Path

import asyncpg

CALLED = Path(__file__).with_name("functions_of_0.1.0.txt")
FUNCTIONS = """
select p.proname as name, array(
        select a.type::regtype::text from unnest(p.proargtypes::oid[]) with ordinality a (type, n)
        order by a.n) as given,
    cardinality(p.proargtypes::oid[]) - p.pronargdefaults as least,
    array(
        select concat_ws(' ', nullif(a.name, ''), a.type::regtype::text)
        from unnest(coalesce(p.proargnames, '{}'), p.proallargtypes, p.proargmodes)
            as a (name, type, mode)
        where a.mode in ('o', 't')
        union all
        select p.prorettype::regtype::text where p.proallargtypes is null) as returned
from pg_proc p
where p.pronamespace = 'holdfast'::regnamespace and p.proname !~ '^_' order by 1, 2
"""


async def test_functions_take_and_return_what_those_of_the_release_did(database_url: str) -> None:
    """Fault: the charts of a server of 0.1.0 failed, once `read_stats` had no column `seconds`.

    More columns, and more parameters that have defaults, change nothing for them. `list_runs` has
    new parameters before two that clients of 0.1.0 do not pass.
    """
    connection = await asyncpg.connect(database_url, server_settings={"search_path": "holdfast"})
    found = await connection.fetch(FUNCTIONS)
    await connection.close()
    lost: list[str] = []
    for line in CALLED.read_text(encoding="utf-8").splitlines():
        name, given, returned = (part.split(", ") if part else [] for part in line.split(" | "))
        if not any(
            each["name"] == name[0]
            and each["given"][: len(given)] == given
            and each["least"] <= len(given)
            and set(returned) <= set(each["returned"])
            for each in found
        ):
            lost.append(line)
    assert lost == []
