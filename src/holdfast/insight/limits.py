"""What limits say, and which of them a run waits for."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.insight.findings import Finding
from holdfast.insight.wording import ago, length_of, number, several
from holdfast.store.port import Store
from holdfast.store.port.limits import concerns_messages
from holdfast.types import LimitInfo, LimitRule, LimitWait
from holdfast.values.key_paths import shown_path


def holding(waits: Sequence[LimitWait]) -> list[LimitWait]:
    """Return the limits that keep the task that waits for all of these from beginning now."""
    return [each for each in waits if each.free is not None and each.free < (each.uses or 1)]


def limit_text(rule: LimitRule) -> str:
    """Return what a limit says: `workflow 'shop/buy' runs 5 at once for each input.customer`."""
    of_activity = rule.scope == "activity"
    key = shown_path(rule.key, of_activity=of_activity)
    each = f" for each {key}" if key else ""
    subject, period = f"{rule.scope} {rule.name!r}", length_of(rule.period_seconds or 0)
    match rule.kind:
        case "concurrency":
            held = " (a run counts until it ends)" if rule.holds == "run" else ""
            return f"{subject} runs {rule.most} at once{each}{held}"
        case "rate":
            even = ", at even distances" if rule.smooth else ""
            return f"{subject} begins {rule.most} in {period}{each}{even}"
        case "units":
            of = "units of its calls"
            if rule.units != "call":
                of = shown_path(rule.units or "", of_activity=of_activity)
            return f"{subject} uses {rule.most:,} in {period}{each}, by {of}"
        case "fairness":
            return f"in {subject} the values of {key} take turns"
        case _:
            return f"in {subject} what waits gains a priority each {period}"


def wait_text(wait: LimitWait, now: int) -> str:
    """Return that a limit allows no more now, and what it allows next."""
    slot = f" {wait.slot!r}" if wait.rule.key else ""
    if wait.rule.kind == "concurrency":
        return f"{limit_text(wait.rule)}, and{slot} has {wait.held} now"
    if wait.uses is not None:
        begins = "" if wait.next_at is None else f": it can begin {ago(wait.next_at, now)}"
        free = f"{wait.free or 0:,} are free{' for' if slot else ''}{slot}"
        return f"{limit_text(wait.rule)}; it uses {wait.uses:,}, and {free}{begins}"
    allows = "" if wait.next_at is None else f"; it allows the next{slot} {ago(wait.next_at, now)}"
    return f"{limit_text(wait.rule)}{allows}"


def place_text(wait: LimitWait) -> str:
    """Return the place of a task among those that wait for the same limits with the same keys."""
    if wait.ahead == 0:
        return "it is the first of those that wait with the same keys"
    comes = "comes" if wait.ahead == 1 else "come"
    return f"{several(wait.ahead, 'other')} with the same keys {comes} before it"


def limits_text(waits: Sequence[LimitWait], now: int) -> str:
    """Return what a task waits for because of its limits, of which it has one or more."""
    texts = [f"a limit holds it: {wait_text(wait, now)}" for wait in holding(waits)]
    texts = texts or ["its limits allow it, and it waits for its turn"]
    return "; ".join([*texts, place_text(waits[0])])


def waiting_text(info: LimitInfo) -> str:
    """Return how much waits for a limit: `12`, or `1,000+` if counting was ended."""
    return number(info.waiting, more=info.more_wait)


def limits_of_messages(limits: Sequence[LimitInfo], queue: str) -> list[LimitInfo]:
    """Return the limits that concern the messages of a queue."""
    return [each for each in limits if concerns_messages(each.rule, queue)]


def full_text(info: LimitInfo) -> str:
    """Return what a limit says, and how many values of its key allow no more."""
    keys = f", and {several(info.full_keys, 'key')} {'is' if info.full_keys == 1 else 'are'} full"
    return limit_text(info.rule) + (keys if info.rule.key and info.full_keys else "")


def use_text(info: LimitInfo) -> str:
    """Return what a limit of a queue says to its messages, and how much of it is used."""
    used = f"{info.held} in flight" if info.used is None else f"{info.used} of them used"
    waiting = f", {waiting_text(info)} waiting" if info.waiting else ""
    return f"{full_text(info)}: {used}{waiting}"


async def check_limits(store: Store) -> Finding:
    """List the limits that hold work back now."""
    limits = await store.list_limits()
    holding = [each for each in limits if each.waiting and each.full_keys]
    if not holding:
        return Finding("limits", "ok", f"{several(len(limits), 'limit')}; none is full")
    parts = [
        f"{full_text(each)}: tasks or messages that wait there: {waiting_text(each)}"
        for each in holding
    ]
    return Finding("limits", "ok", "; ".join(parts))
