"""What an application declares: its app, workflows, steps, activities, flows, and middleware."""

from holdfast.definitions.activities import Activity
from holdfast.definitions.alerts import Condition, backlog, failed, no_worker, slow, stuck
from holdfast.definitions.app import App
from holdfast.definitions.consumers import Consumer
from holdfast.definitions.flow_steps import FlowStep
from holdfast.definitions.flows import Flow
from holdfast.definitions.lifespan import Lifespan
from holdfast.definitions.middleware import Middleware
from holdfast.definitions.schedules import Schedule
from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Workflow

__all__ = [
    "Activity",
    "App",
    "Condition",
    "Consumer",
    "Flow",
    "FlowStep",
    "Lifespan",
    "Middleware",
    "Schedule",
    "Step",
    "Workflow",
    "backlog",
    "failed",
    "no_worker",
    "slow",
    "stuck",
]
