"""Tools for agents, by the Model Context Protocol: each is an operation of the REST API."""
