"""`holdfast topics`: publish events, and say what they reach."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.answers import Answer, answer
from holdfast.cli.framework import FilePath, Group, command, option, sources
from holdfast.cli.inputs import json_of
from holdfast.cli.render.console import console, folding, numbers, plain, table
from holdfast.cli.render.hints import with_database

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.cli.connecting import Link
    from holdfast.client.publishing import Subscription
    from holdfast.types import DeliveryRecord, EventTarget, Published, SubscriptionKind

_KINDS = ("workflow", "queue", "url", "run")
_SEARCHED = 10_000  # subscriptions of which it is known who declares them


@click.group(
    "topics",
    cls=Group,
    sources=sources(
        __name__,
        "publish",
        "subscribe",
        "unsubscribe",
        "list:list_subscriptions",
        "show",
        "deliveries",
        "redrive",
        "discard",
    ),
    examples=(
        """holdfast topics publish invoices.17.paid '{"cents": 4200}'""",
        "holdfast topics subscribe 'invoices.*.paid' --workflow shop/ship",
        "holdfast topics show invoices.17.paid",
        "holdfast topics deliveries --dead",
    ),
)
def topics() -> None:
    """Publish events, and say which workflows, queues and URLs get them.

    A topic is segments with dots between them. In a pattern, * stands for one segment and # for
    any number of them.
    """


@command(
    "publish",
    examples=(
        """holdfast topics publish invoices.17.paid '{"cents": 4200}'""",
        "holdfast topics publish invoices.17.paid --id payment-9913",
    ),
)
@click.argument("topic")
@click.argument("payload", required=False, callback=json_of("PAYLOAD"))
@option("--id ID", "Publish an event of this id only once.", name="event_id")
async def publish(link: Link, topic: str, payload: object, event_id: str | None) -> Answer:
    """Publish an event: all that is subscribed to its topic gets it.

    PAYLOAD is JSON, @FILE, or - for stdin. Exit code 1 if an event of this id was published
    within the last hour.
    """
    published = await link.client.topics.publish(topic, payload, event_id=event_id)
    text = f"event {published.event_id}: {_reached(published)}"
    if not published.is_new:
        text = f"event {published.event_id} was published before"
    return Answer(published, text, ok=published.is_new)


@command(
    "subscribe",
    examples=(
        "holdfast topics subscribe 'invoices.*.paid' --workflow shop/ship",
        """holdfast topics subscribe 'invoices.#' --queue audit --match '{"country": "DE"}'""",
        "holdfast topics subscribe '#' --url https://example.org/events --secret-file secret.txt",
    ),
)
@click.argument("pattern")
@option("--workflow NAME", "Start a run of this workflow for each event.")
@option("--queue NAME", "Send each event to this message queue.")
@option("--url URL", "Send each event to this URL, signed.")
@option("--match JSON", "Only events whose payload contains this.", callback=json_of("--match"))
@option(
    "--secret-file",
    "Of a URL: the file that has the secret.",
    type=FilePath(exists=True, dir_okay=False, path_type=Path),
)
@option("--allow-inner", "Of a URL: it may be at an inner address.")
def subscribe(
    pattern: str,
    workflow: str | None,
    queue: str | None,
    url: str | None,
    match: Any,
    secret_file: Path | None,
    allow_inner: bool,
) -> None:
    """Let events of topics that fit a pattern start runs, or send them to a queue or a URL.

    With --workflow, --queue is the queue of its runs. The subscription's id is printed.
    """
    if url is not None and secret_file is None:
        raise click.UsageError("--url needs the secret that signs: --secret-file FILE")
    if url is None and (secret_file is not None or allow_inner):
        raise click.UsageError("--secret-file and --allow-inner are options of a --url")
    secret = None if secret_file is None else secret_file.read_text().strip()
    options: Any = {} if queue is None else {"queue": queue}

    async def work(link: Link) -> Answer:
        subscription_id = await link.client.topics.subscribe(
            pattern,
            workflow=workflow,
            url=url,
            match=match,
            secret=secret,
            allow_inner=allow_inner,
            **options,
        )
        return Answer({"subscription_id": subscription_id}, str(subscription_id))

    answer(work)


@command("unsubscribe", examples=("holdfast topics unsubscribe 12",))
@click.argument("subscription_id", metavar="ID", type=int)
async def unsubscribe(link: Link, subscription_id: int) -> Answer:
    """Remove a subscription. Exit code 1 if there is none.

    What it has started stays. One that an app's code declares comes back: change the code.
    """
    topics = link.client.topics
    apps = {each.subscription_id: each.app for each in await topics.list(limit=_SEARCHED)}
    removed, app = await topics.unsubscribe(subscription_id), apps.get(subscription_id)

    def write() -> None:
        if not removed:
            none = f"there is no subscription {subscription_id}; `holdfast topics list` names them"
            click.echo(with_database(none), err=True)
            return
        click.echo("removed")
        if app is not None:
            warning = (
                f"WARNING: the code of {app} declares it: a live worker with that code adds it"
            )
            click.echo(f"{warning} again. To be rid of it, change the code", err=True)

    return Answer({"removed": removed}, write, ok=removed)


@command("list", examples=("holdfast topics list", "holdfast topics list --kind url --limit 1000"))
@option("--kind", "Of this kind; run: runs that wait.", type=click.Choice(_KINDS))
@option("--limit", type=click.IntRange(1), default=100)
async def list_subscriptions(link: Link, kind: SubscriptionKind | None, limit: int) -> Answer:
    """List subscriptions: all but those of runs that wait."""
    found = await link.client.topics.list(kind=kind, limit=limit)
    none = "no subscriptions"
    return Answer([_object(each) for each in found], lambda: _table(found), none=none)


@command("show", examples=("holdfast topics show invoices.17.paid",))
@click.argument("topic")
async def show(link: Link, topic: str) -> Answer:
    """Show what an event of a topic would reach, apart from conditions."""
    found = await link.client.topics.list(topic=topic, limit=1_000)
    waiting = (await link.client.topics.count(topic)).get("run", 0)

    def write() -> None:
        if found:
            console().print(_table(found))
        elif not waiting:
            click.echo("no subscriptions", err=True)
        if waiting:
            click.echo(f"{waiting} subscription(s) of runs that wait")

    objects = [_object(each) for each in found]
    return Answer({"subscriptions": objects, "waiting_runs": waiting}, write)


def _object(subscription: Subscription) -> dict[str, object]:
    """Return a subscription for JSON, its target with the kind of it."""
    return plain(subscription.record) | {"target": subscription.record.target}


@command(
    "deliveries",
    examples=("holdfast topics deliveries", "holdfast topics deliveries --dead --limit 1000"),
)
@option("--dead", "Only those that failed five times.")
@option("--limit", type=click.IntRange(1), default=100)
async def deliveries(link: Link, dead: bool, limit: int) -> Answer:
    """List events that are not yet delivered to URLs, and why."""
    found = await link.client.topics.deliveries(dead=True if dead else None, limit=limit)
    objects = [plain(each) for each in found]
    return Answer(objects, lambda: _deliveries(found), none="no deliveries")


@command("redrive", examples=("holdfast topics redrive", "holdfast topics redrive 7 8"))
@click.argument("delivery_ids", metavar="[ID]...", type=int, nargs=-1)
async def redrive(link: Link, delivery_ids: tuple[int, ...]) -> Answer:
    """Deliver dead deliveries again: these, or all. Exit code 1 if there were none."""
    count = await link.client.topics.redrive(list(delivery_ids) or None)
    return _acted(delivery_ids, "redriven", count)


@command("discard", examples=("holdfast topics discard 7 8",))
@click.argument("delivery_ids", metavar="ID...", type=int, nargs=-1, required=True)
async def discard(link: Link, delivery_ids: tuple[int, ...]) -> Answer:
    """Delete dead deliveries. Exit code 1 if there were none."""
    count = await link.client.topics.discard(list(delivery_ids))
    return _acted(delivery_ids, "discarded", count)


def _acted(ids: tuple[int, ...], done: str, count: int) -> Answer:
    none = "none of these is a dead delivery" if ids else "there are no dead deliveries"
    return Answer({done: count}, f"{done}: {count}" if count else none, ok=count > 0)


def _table(found: list[Subscription]) -> Table:
    from holdfast.codec import encode

    shown = table(numbers("id"), folding("pattern", "match", "target", "of"))
    for each in found:
        paused = f", paused by {each.paused_by}" if each.paused_at is not None else ""
        shown.add_row(
            str(each.subscription_id),
            each.pattern,
            "" if each.match is None else encode(each.match),
            f"run {each.run_id}" if each.target is None else target_text(each.target),
            ("a run" if each.run_id else f"code of {each.app}" if each.app else "a user") + paused,
        )
    return shown


def target_text(target: EventTarget) -> str:
    """Return what a subscription's target is."""
    from holdfast.types import QueueTarget, RunTarget

    if isinstance(target, RunTarget):
        return f"workflow {target.name}"
    if isinstance(target, QueueTarget):
        return f"message queue {target.queue}"
    return target.url


def _deliveries(found: list[DeliveryRecord]) -> Table:
    shown = table(folding("id", "topic", "event", "attempts", "state", "url", "error"))
    for each in found:
        shown.add_row(
            str(each.delivery_id),
            each.topic,
            each.event_id,
            str(each.attempts),
            "open" if each.dead_at is None else "dead",
            each.url or "",
            each.error or "",
        )
    return shown


def _reached(published: Published) -> str:
    reached = [
        f"{count} {name}{'' if count == 1 else 's'}"
        for name, count in (
            ("workflow", published.workflows),
            ("waiting run", published.runs),
            ("queue", published.queues),
            ("URL", published.urls),
        )
        if count
    ]
    refused = f"; {published.refused} start(s) refused by rules" if published.refused else ""
    return (", ".join(reached) or "nothing is subscribed") + refused
