"""What an application declares: its app, workflows, steps, activities, and what surrounds them."""

from holdfast.definitions.activities import Activity
from holdfast.definitions.app import App
from holdfast.definitions.lifespan import Lifespan
from holdfast.definitions.middleware import Middleware
from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Workflow

__all__ = ["Activity", "App", "Lifespan", "Middleware", "Step", "Workflow"]
