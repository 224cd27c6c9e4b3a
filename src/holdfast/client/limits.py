"""`client.limits`: how many tasks run at once or begin in a period, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.client.naming import Named
from holdfast.client.session import Group
from holdfast.definitions.activities import Activity
from holdfast.definitions.limits import CALL, Ageing, AnyLimit, Fairness, Limit, Rate, in_arguments
from holdfast.errors import InvalidInput
from holdfast.insight.serving import live_activities
from holdfast.store.port import WORK_TOPIC, messages_topic
from holdfast.store.shared_calls import persist
from holdfast.types import LimitInfo, LimitKind, LimitRule, LimitScope, Notice
from holdfast.values.key_paths import shown_path
from holdfast.values.names import check_queue_name, check_reference, full_name, split_name
from holdfast.values.numbers import true_or_false
from holdfast.values.texts import check_text, clipped


class Limits(Group):
    """The limits of queues, workflows and activities, in all workers together."""

    async def set(
        self,
        limit: AnyLimit,
        *,
        queue: str | None = None,
        workflow: Named | str | None = None,
        activity: Named | str | None = None,
    ) -> bool:
        """Set a limit on a queue, a workflow or an activity. Return False if nothing changed.

        It holds for what workers claim from now on; what runs already counts and is not stopped.
        It stays when workers start again, until their code declares something else than before.
        An activity's name may lack its app if only one app has live workers with it. A path of an
        activity begins with one of its parameters, if the client's app has the activity or a limit
        of it has the path, or with the parameter's place: `input.0`. Raises InvalidInput unless one
        of the three is named, for a name that means none or several, and for a parameter that the
        client cannot know; ConfigurationError for one that the app's activity lacks.

        ```python
        await client.limits.set(Limit(5), queue="mail")
        await client.limits.set(Rate(100, per="1m", key="input.customer"), workflow=checkout)
        ```
        """
        if not isinstance(limit, AnyLimit):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"{clipped(limit)} is not a Limit, Rate, Fairness or Ageing")
        scope, name = await self._named(queue, workflow, activity)
        rule = limit.rule(scope, name)
        if scope == "activity":
            rule = await self._in_arguments(rule, activity)
        changed = await persist(partial(self._session.store.set_limit, rule))
        await self._wake(queue)
        return changed

    async def remove(
        self,
        limit: type[AnyLimit],
        *,
        queue: str | None = None,
        workflow: Named | str | None = None,
        activity: Named | str | None = None,
        key: str | None = None,
        units: bool = False,
    ) -> bool:
        """Remove a limit, which is known by its class and its key. Return False if there is none.

        With `units` it is the `Rate` that counts units.

        What waits for it may run at once. A limit that code declares stays removed until the code
        declares something else.

        ```python
        await client.limits.remove(Limit, queue="mail")
        ```
        """
        scope, name = await self._named(queue, workflow, activity)
        kind = "units" if true_or_false(units, "units") and limit is Rate else _kind(limit)
        if scope == "activity" and key:
            key = (await self._known_paths(name)).get(key, key)
        remove = self._session.store.remove_limit
        removed = await persist(
            partial(remove, scope, name, kind, "" if key is None else check_text("key", key))
        )
        await self._wake(queue)
        return removed

    async def list(self) -> list[LimitInfo]:
        """Return all limits, and how they are used.

        ```python
        for limit in await client.limits.list():
            print(limit.rule.name, limit.rule.most, limit.held, limit.waiting)
        ```
        """
        return await self._session.store.list_limits()

    async def _named(
        self, queue: str | None, workflow: Named | str | None, activity: Named | str | None
    ) -> tuple[LimitScope, str]:
        given: Sequence[tuple[LimitScope, Named | str | None]] = (
            ("queue", queue),
            ("workflow", workflow),
            ("activity", activity),
        )
        named = [(scope, name) for scope, name in given if name is not None]
        if len(named) != 1:
            raise InvalidInput("name the queue, the workflow or the activity of the limit")
        [(_, name)] = named
        if workflow is not None:
            return "workflow", await self._session.names.full(name)
        if queue is not None:
            return "queue", check_queue_name(queue)
        full = name if isinstance(name, str) else name.full_name
        return "activity", await self._full_activity(check_reference("an activity", full))

    async def _full_activity(self, name: str) -> str:
        """Return an activity's full name: of the client's app, else of the one that serves it."""
        if "/" in name:
            return name
        if self._session.app is not None:
            return full_name(self._session.app.name, name)
        known = await live_activities(self._session.store)
        found = [each for each in known if split_name(each)[1] == name]
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidInput(f"several apps have an activity {name}: name {' or '.join(found)}")
        raise InvalidInput(
            f"no live worker has an activity {name}, so its app is not known: name the app as "
            f"well, as in {full_name('APP', name)}"
        )

    async def _in_arguments(self, rule: LimitRule, activity: Named | str | None) -> LimitRule:
        """Return a limit of an activity with its paths in the arguments as they are recorded."""
        app, (of, own) = self._session.app, split_name(rule.name)
        if app is not None and app.name == of and own in app.activities:
            activity = app.activities[own]
        known = await self._known_paths(rule.name)

        def recorded(path: str) -> str:
            if isinstance(activity, Activity) and not _begins_with_place(path):
                return in_arguments(path, rule.name, activity.signature)
            return _known_or_place(path, known)

        units = rule.units if rule.units in (None, CALL) else recorded(rule.units)
        return replace(rule, key=recorded(rule.key), units=units)

    async def _known_paths(self, activity: str) -> dict[str, str]:
        """Return the recorded paths of the limits of an activity by how they are shown.

        Without those that an earlier release has set by hand: they lead nowhere.
        """
        rules = [each.rule for each in await self.list()]
        return {
            shown_path(path, of_activity=True): path
            for rule in rules
            if (rule.scope, rule.name) == ("activity", activity)
            for path in (rule.key, rule.units)
            if path and (path.startswith("input.k.") or _begins_with_place(path))
        }

    async def _wake(self, queue: str | None) -> None:
        """Wake the workers, and who receives from a queue: what waited for a limit may run now."""
        workers = await self._session.store.list_workers()
        queues = sorted({queue for worker in workers for queue in worker.queues})
        notices = [Notice(WORK_TOPIC, each) for each in queues]
        notices += [] if queue is None else [Notice(messages_topic(queue), queue)]
        self._session.tell(notices)


def _known_or_place(path: str, known: Mapping[str, str]) -> str:
    """Return the path in the recorded arguments: a known one, or from the place of a parameter."""
    _, _, rest = path.partition(".")
    if path in known or not rest:
        return known.get(path, path)
    if not _begins_with_place(path):
        raise InvalidInput(
            f"{path}: this client does not know the parameters of the activity: give it the app, "
            "or begin with the place of the parameter, such as input.0"
        )
    return f"{path}|input.a.{rest}"


def _begins_with_place(path: str) -> bool:
    return path.partition(".")[2].partition(".")[0].isdecimal()


def _kind(limit: Any) -> LimitKind:
    for each, kind in _KINDS.items():
        if each is limit:
            return kind
    names = ", ".join(each.__name__ for each in _KINDS)
    raise InvalidInput(f"a limit is removed by its class, one of {names}; not {str(limit)[:100]!r}")


_KINDS: dict[type[AnyLimit], LimitKind] = {
    Limit: "concurrency",
    Rate: "rate",
    Fairness: "fairness",
    Ageing: "ageing",
}
