"""`holdfast limits`: how much runs at once or begins in a period, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.answers import Answer, answer
from holdfast.cli.framework import Group, command, option, sources, together
from holdfast.cli.inputs import complete_app
from holdfast.cli.render.console import folding, numbers, plain, table, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from holdfast.cli.connecting import Link
    from holdfast.definitions.limits import AnyLimit
    from holdfast.types import Holds, LimitInfo, LimitRule, LimitScope

_KINDS = ("concurrency", "rate", "units", "fairness", "ageing")


@click.group(
    "limits",
    cls=Group,
    sources=sources(__name__, "list:list_limits", "set:set_limit", "remove"),
    examples=(
        "holdfast limits list",
        "holdfast limits set --queue mail --concurrency 5",
        "holdfast limits remove concurrency --queue mail",
    ),
)
def limits() -> None:
    """List, set and remove limits: how much runs at once, in all workers together.

    A limit concerns the tasks of a queue, a workflow or an activity. With a key, it is for each
    value that inputs have there.
    """


# What a limit concerns, and its key.
_named = together(
    option("--queue NAME", "The queue."),
    option("--workflow NAME", "The workflow: checkout, or shop/checkout."),
    option("--activity NAME", "The activity: charge, or shop/charge."),
    option(
        "--key PATH", "For each value at this path: input.customer; of an activity also input.0."
    ),
)


@command("list", examples=("holdfast limits list", "holdfast limits list --json"))
async def list_limits(link: Link) -> Answer:
    """List all limits, how many tasks count for each now, and how many wait."""
    found = await link.client.limits.list()
    objects = [plain(each) | {"rule": each.rule} for each in found]
    return Answer(objects, lambda: _table(found), none="no limits")


@command(
    "set",
    examples=(
        "holdfast limits set --queue mail --concurrency 5",
        "holdfast limits set --workflow checkout --concurrency 1 --key input.customer",
        "holdfast limits set --activity shop/charge --rate 100 --per 1m",
        "holdfast limits set --activity shop/ask --rate 90000 --per 1m --units input.1",
        "holdfast limits set --queue mail --fairness --key input.tenant",
        "holdfast limits set --queue mail --ageing 5m",
    ),
)
@_named
@option("--concurrency N", "At most N at once.", type=click.IntRange(1))
@option(
    "--holds",
    "Until when one counts: while a worker executes it, or until the run ends.",
    type=click.Choice(("turn", "run")),
)
@option("--rate N", "At most N begin in --per.", type=click.IntRange(1))
@option("--per TIME", "The period of a rate: 1s, 5m.")
@option("--smooth", "Begin at even distances.")
@option(
    "--units PATH",
    "The rate counts units: the number that inputs have at this path, input.tokens; or call: "
    "that of each call of an activity.",
)
@option("--fairness", "The values of --key take turns.")
@option("--ageing TIME", "What waits gains a priority each TIME.")
@option(
    "--app MODULE:APP",
    "Read paths of activities by the parameters of this app, and refuse a key that is "
    "encoded in its inputs.",
    name="app_reference",
    shell_complete=complete_app,
)
def set_limit(
    *,
    queue: str | None,
    workflow: str | None,
    activity: str | None,
    key: str | None,
    app_reference: str | None,
    **options: Any,
) -> None:
    """Set a limit on a queue, a workflow or an activity.

    It holds for what workers claim from now on, and stays when they start again. What runs
    already counts, and is not stopped. With --app, a key is refused that the database cannot look
    for because the app encodes its inputs. Exit code 1 if nothing changed.
    """
    from holdfast.cli.process.loading import load_app
    from holdfast.insight.limits import limit_text
    from holdfast.insight.serving import find_unknown
    from holdfast.values.key_paths import shown_path

    _check_one("--queue, --workflow and --activity", queue, workflow, activity)
    limit = _limit(key, **options)
    app = load_app(app_reference)

    async def work(link: Link) -> Answer:
        changed = await link.client.limits.set(
            limit, queue=queue, workflow=workflow, activity=activity
        )
        scope: LimitScope = "queue" if queue else "workflow" if workflow else "activity"
        rule = limit.rule(scope, queue or workflow or activity or "")
        found = await link.client.limits.list()
        info = next(
            info
            for info in found
            if (info.rule.scope, info.rule.kind) == (scope, rule.kind)
            and shown_path(info.rule.key, of_activity=activity is not None) == (key or "")
            and info.rule.name in (rule.name, f"{info.rule.name.partition('/')[0]}/{rule.name}")
        )
        unknown = await find_unknown(link.store, info.rule.scope, [info.rule.name])
        similar = unknown.get(info.rule.name, ())

        def write() -> None:
            click.echo(limit_text(info.rule) + ("" if changed else ": it was just so"))
            if unknown:
                click.echo(_warning(info.rule, similar), err=True)

        known = not unknown
        told = {"changed": changed, "limit": info, "known": known, "similar": similar}
        return Answer(told, write, ok=changed)

    answer(work, app=app)


@command(
    "remove",
    examples=(
        "holdfast limits remove concurrency --queue mail",
        "holdfast limits remove concurrency --workflow checkout --key input.customer",
    ),
)
@click.argument("kind", type=click.Choice(_KINDS))
@_named
def remove(kind: str, key: str | None, **where: Any) -> None:
    """Remove a limit of the kind concurrency, rate, units, fairness or ageing.

    What waits for it may run at once.

    A limit that code declares stays removed until the code declares something else. Exit code 1
    if there is no such limit.
    """
    from holdfast.definitions.limits import Ageing, Fairness, Limit, Rate

    _check_one("--queue, --workflow and --activity", *where.values())
    types: dict[str, type[AnyLimit]] = dict(
        zip(_KINDS, (Limit, Rate, Rate, Fairness, Ageing), strict=True)
    )

    async def work(link: Link) -> Answer:
        units = kind == "units"
        removed = await link.client.limits.remove(types[kind], key=key, units=units, **where)
        text = "removed" if removed else "there is no such limit"
        return Answer({"removed": removed}, text, ok=removed)

    answer(work)


def _warning(rule: LimitRule, similar: Sequence[str]) -> str:
    """Say that nobody has what a limit is for: the name may be mistyped."""
    meant = f"; did you mean {' or '.join(similar)}?" if similar else ""
    return f"WARNING: no live worker and no run has {rule.scope} {rule.name}{meant}"


def _check_one(options: str, *given: object) -> None:
    if sum(each is not None and each is not False for each in given) != 1:
        raise click.UsageError(f"give one of {options}")


def _limit(
    key: str | None,
    concurrency: int | None,
    holds: Holds | None,
    rate: int | None,
    per: str | None,
    smooth: bool,
    units: str | None,
    fairness: bool,
    ageing: str | None,
) -> AnyLimit:
    """Return the limit that the options mean."""
    from holdfast.definitions.limits import Ageing, Fairness, Limit, Rate

    _check_one(
        "--concurrency, --rate, --fairness and --ageing", concurrency, rate, fairness, ageing
    )
    if holds is not None and concurrency is None:
        raise click.UsageError("--holds is for --concurrency")
    if (per is not None or smooth or units is not None) and rate is None:
        raise click.UsageError("--per, --smooth and --units are for --rate")
    if concurrency is not None:
        return Limit(concurrency, key, holds)
    if rate is not None:
        if per is None:
            raise click.UsageError("--rate needs its period: --per 1m")
        return Rate(rate, per, key, smooth, units)
    if fairness:
        if key is None:
            raise click.UsageError("--fairness needs the key whose values take turns: --key PATH")
        return Fairness(key)
    if key is not None:
        raise click.UsageError("--ageing concerns all tasks: leave out --key")
    return Ageing(ageing or "")


def _table(found: list[LimitInfo]) -> Table:
    """Return limits as a table, a row each."""
    from holdfast.insight.limits import limit_text, waiting_text

    counts = numbers("held", "used", "full keys", "waiting")
    shown = table(folding("limit"), counts, whole(""))
    for each in found:
        is_held = each.rule.kind == "concurrency"
        shown.add_row(
            limit_text(each.rule),
            str(each.held) if is_held else "",
            "" if each.used is None else f"{each.used:,}",
            str(each.full_keys) if is_held else "",
            waiting_text(each),
            "in code" if each.is_declared else "",
        )
    return shown
