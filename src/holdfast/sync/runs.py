"""Generated from the asynchronous client by scripts/generate_sync.py."""

from __future__ import annotations

from holdfast.client.runs import Runs
from holdfast.sync.base import SyncGroup, blocking, iterating, making
from holdfast.sync.handle import SyncRunHandle


class SyncRuns(SyncGroup[Runs], of=Runs):
    """All runs: find them, read them, and change them, one or many at a time."""

    list = blocking(Runs.list)
    """Return a page of runs, newest first; to loop over all of them, use `iterate`."""
    count = blocking(Runs.count)
    """Return how many runs there are of each workflow, state, queue or tag, most first."""
    iterate = iterating(Runs.iterate)
    """Iterate over all runs that `list` gives page by page; `limit` is the size of a page."""
    find_ids = blocking(Runs.find_ids)
    """Return the ids of runs that begin with these hexadecimal digits, in order."""
    get = blocking(Runs.get)
    """Return a run as it is now. Raises RunNotFound."""
    wait = blocking(Runs.wait)
    """Wait until a run has ended, in whatever way, and return it."""
    log = blocking(Runs.log)
    """Return a run's log from an index on. Raises RunNotFound."""
    follow_log = iterating(Runs.follow_log)
    """Iterate over a run's log as it grows, until the run has ended. Raises RunNotFound."""
    read_log_lines = blocking(Runs.read_log_lines)
    """Return what the code of a run has logged by `logging`, up to `limit` lines."""
    follow_log_lines = iterating(Runs.follow_log_lines)
    """Iterate over what the code of a run logs, until the run has ended; see `read_log_lines`."""
    values = blocking(Runs.values)
    """Return the newest value of each name that the run has set; empty if it has set none."""
    watch_value = iterating(Runs.watch_value)
    """Iterate over a value that the run sets: what it is now, then each change, to the end."""
    watch_steps = iterating(Runs.watch_steps)
    """Iterate over the steps of a flow's run: as they are now, then at each change, to the end."""
    cancel = blocking(Runs.cancel)
    """Ask a run to end; its code may clean up first. Return False if it had ended before."""
    terminate = blocking(Runs.terminate)
    """End a run at once, without its code. Return False if it had ended before."""
    pause = blocking(Runs.pause)
    """Let a run do nothing until it is resumed. Return False if it was paused before."""
    resume = blocking(Runs.resume)
    """Let a paused run continue, or try a stuck one again now. Return False for any other."""
    reschedule = blocking(Runs.reschedule)
    """Change the queue, the start or the deadline of an open run; False if it was so before."""
    retry = making(SyncRunHandle[object], Runs.retry)
    """Start a run that continues where another one failed, with all that it had completed."""
    retry_plan = blocking(Runs.retry_plan)
    """Return which calls a retry would keep, and which it would make again, by key."""
    fork = making(SyncRunHandle[object], Runs.fork)
    """Start a run that continues from a place in another run's log."""
    set_attributes = blocking(Runs.set_attributes)
    """Set attributes of a run, open or ended, and return all that it has; None removes one."""
    set_tags = blocking(Runs.set_tags)
    """Change the tags of a run, open or ended, and return all that it has."""
    cancel_all = blocking(Runs.cancel_all)
    """Ask all runs of a filter to end; see `cancel`."""
    terminate_all = blocking(Runs.terminate_all)
    """End all runs of a filter at once, without their code; see `terminate`, `cancel_all`."""
    pause_all = blocking(Runs.pause_all)
    """Let all runs of a filter do nothing until they are resumed; see `pause`, `cancel_all`."""
    resume_all = blocking(Runs.resume_all)
    """Let all paused and stuck runs of a filter continue; see `resume` and `cancel_all`."""
    reschedule_all = blocking(Runs.reschedule_all)
    """Change queue, start or deadline of all open runs of a filter; see `reschedule`."""
    signal_all = blocking(Runs.signal_all)
    """Send all runs of a filter a signal; see `Client.signal` and `cancel_all`."""
    retry_all = blocking(Runs.retry_all)
    """Retry all runs of a filter that failed or timed out; see `retry` and `cancel_all`."""
