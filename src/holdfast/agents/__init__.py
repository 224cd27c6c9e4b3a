"""Agents of other frameworks as workflow code: requests of models and calls of tools are steps.

One module a framework, each with an extra of its own: `holdfast.agents.pydantic_ai`,
`holdfast.agents.openai`, `holdfast.agents.langchain`.
"""

from holdfast.errors import ConfigurationError


def missing(module: str, package: str, extra: str) -> ConfigurationError:
    """Return the error for a framework that is not installed, or too old for a module."""
    return ConfigurationError(
        f"{module} needs {package} or newer: pip install --upgrade 'holdfast[{extra}]'"
    )
