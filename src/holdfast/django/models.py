"""No models: Django tells only apps that have this module that it has migrated."""
