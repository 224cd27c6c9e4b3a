"""What a program has defined: workflows, activities, middleware and lifespans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never, TypeAlias

from holdfast.definitions.lifespan import Lifespan
from holdfast.definitions.middleware import Layers
from holdfast.durations import Duration, seconds
from holdfast.errors import ConfigurationError, UnknownWorkflow
from holdfast.names import check_app_name
from holdfast.retry import Retry

if TYPE_CHECKING:
    from holdfast.definitions.activities import Activity
    from holdfast.definitions.steps import Step
    from holdfast.definitions.workflows import Workflow

AnyWorkflow: TypeAlias = "Workflow[Never, object]"
AnyActivity: TypeAlias = "Activity[..., object]"


class Registry:
    """The definitions of one program.

    `retry` holds for steps and activities that name none of their own, and `blocking_seconds` is
    how long workflow code may hold its worker.
    """

    def __init__(
        self, name: str, retry: Retry | None = None, blocking_limit: Duration = "2s"
    ) -> None:
        """Start empty. Raises InvalidName outside `[a-zA-Z0-9._-]{1,128}`."""
        self.name = check_app_name(name)
        self.retry = retry or Retry()
        self.blocking_seconds = seconds(blocking_limit)
        if self.blocking_seconds <= 0:
            raise ConfigurationError(f"app {name}: blocking_limit must be more than 0")
        self.workflows: dict[tuple[str, int], AnyWorkflow] = {}
        self.activities: dict[str, AnyActivity] = {}
        self.steps: set[str] = set()  # their names
        self.aliases: set[str] = set()
        self.lifespans: list[Lifespan[Any]] = []
        self.layers = Layers()

    def handlers(self) -> tuple[str, ...]:
        """Return what this program can run, as `app/name@version`, in the order of definition."""
        workflows = tuple(workflow.handler for workflow in self.workflows.values())
        return workflows + tuple(activity.handler for activity in self.activities.values())

    def queues(self) -> tuple[str, ...]:
        """Return the queues of what this program can run, sorted."""
        queues = {workflow.queue for workflow in self.workflows.values()}
        return tuple(sorted(queues | {activity.queue for activity in self.activities.values()}))

    def find(self, name: str, version: int) -> AnyWorkflow:
        """Return a workflow. Raises UnknownWorkflow where this name and version is not here."""
        try:
            return self.workflows[name, version]
        except KeyError:
            raise UnknownWorkflow(self._unknown(f"{name}@{version}")) from None

    def latest(self, name: str) -> AnyWorkflow:
        """Return the highest version of a workflow. Raises UnknownWorkflow where it has none."""
        versions = [version for known, version in self.workflows if known == name]
        if not versions:
            raise UnknownWorkflow(self._unknown(name))
        return self.workflows[name, max(versions)]

    def add_workflow(self, workflow: AnyWorkflow) -> None:
        """Take in a workflow. Raises ConfigurationError for a version that is there already."""
        place = (workflow.name, workflow.version)
        if place in self.workflows:
            raise ConfigurationError(
                f"workflow {workflow.name}@{workflow.version} is defined twice in app {self.name}: "
                "give the new one another version or name"
            )
        self.workflows[place] = workflow

    def add_step(self, step: Step[..., object]) -> Step[..., object]:
        """Take in a step. Raises ConfigurationError for a name that is there already, and for an
        alias that is the name of another.
        """
        if step.name in self.steps:
            raise ConfigurationError(
                f"step {step.name} is defined twice in app {self.name}: a log could not tell "
                "them apart; give the new one another name, with name=…"
            )
        self.steps.add(step.name)
        self.aliases.update(step.aliases)
        if both := self.steps & self.aliases:
            raise ConfigurationError(
                f"step {step.name}: {', '.join(sorted(both))} is the name of one step of app "
                f"{self.name} and an alias of another: a log could not tell them apart"
            )
        return step

    def add_activity(self, activity: AnyActivity) -> None:
        """Take in an activity. Raises ConfigurationError for a name that is there already."""
        if activity.name in self.activities:
            raise ConfigurationError(
                f"activity {activity.name} is defined twice in app {self.name}: "
                "give the new one another name"
            )
        self.activities[activity.name] = activity

    def _unknown(self, wanted: str) -> str:
        known = ", ".join(f"{name}@{version}" for name, version in self.workflows)
        return f"app {self.name} has no workflow {wanted}; it has {known or 'no workflows'}"
