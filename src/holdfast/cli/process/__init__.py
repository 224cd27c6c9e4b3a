"""Worker processes: loading an app, running it, supervising, reloading and stopping it."""
