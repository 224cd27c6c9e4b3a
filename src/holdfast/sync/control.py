"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from holdfast.client.references import Named, RunRef
from holdfast.sync.messaging import SyncMessenger


class SyncController(SyncMessenger):
    """The part of a client that stops things and lets them go on.

    Whatever is asked of a run that continued as new goes to the newest.
    """

    def cancel(self, run: RunRef, reason: str | None = None) -> bool:
        """Ask a run to end; its code may clean up first. False where it had ended before.

        A run that no worker has begun ends at once. Raises RunNotFound.

        ```python
        client.cancel(run_id, reason="the customer changed their mind")
        ```
        """
        return self._call(self._target.cancel, run, reason)

    def terminate(self, run: RunRef, reason: str | None = None) -> bool:
        """End a run at once, without its code. False where it had ended before.

        Raises RunNotFound.

        ```python
        client.terminate(run_id, reason="started by mistake")
        ```
        """
        return self._call(self._target.terminate, run, reason)

    def pause(self, run: RunRef, reason: str | None = None) -> bool:
        """Let a run do nothing more until it is resumed. False where it was paused before.

        Steps that are running end and are recorded; its timers do not go off and its signals
        are kept. A deadline still ends it. Raises RunNotFound and RunEnded.

        ```python
        client.pause(("checkout", "order-7"), reason="the shop is closed")
        ```
        """
        return self._call(self._target.pause, run, reason)

    def resume(self, run: RunRef) -> bool:
        """Let a paused run go on. False where it was not paused.

        Raises RunNotFound and RunEnded.

        ```python
        client.resume(("checkout", "order-7"))
        ```
        """
        return self._call(self._target.resume, run)

    def pause_queue(self, name: str, reason: str | None = None) -> bool:
        """Let no worker begin anything of a queue. False where it was paused before.

        What runs already is not disturbed. Holds for workers that start later, too.

        ```python
        client.pause_queue("mail", reason="the mail server is down")
        ```
        """
        return self._call(self._target.pause_queue, name, reason)

    def resume_queue(self, name: str) -> bool:
        """Let workers go on with a queue. False where it was not paused.

        ```python
        client.resume_queue("mail")
        ```
        """
        return self._call(self._target.resume_queue, name)

    def pause_workflow(self, workflow: Named | str, reason: str | None = None) -> bool:
        """Let no worker begin a turn of a workflow's runs, of any version.

        False where it was paused before. Runs that are held by a worker go on until they wait.

        ```python
        client.pause_workflow(checkout, reason="wrong prices")
        ```
        """
        return self._call(self._target.pause_workflow, workflow, reason)

    def resume_workflow(self, workflow: Named | str) -> bool:
        """Let the runs of a workflow go on. False where it was not paused.

        ```python
        client.resume_workflow(checkout)
        ```
        """
        return self._call(self._target.resume_workflow, workflow)
