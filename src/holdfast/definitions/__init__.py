"""What an application declares: its app, workflows and steps, and the types of their values."""

from holdfast.definitions.app import App
from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Workflow

__all__ = ["App", "Step", "Workflow"]
