"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.client.bulk import BulkOutcome
from holdfast.client.filters import RunFilters
from holdfast.sync.control import SyncController


class SyncBulkController(SyncController):
    """The part of a client that acts on many runs.

    `where` says on which, as the filters of `list` do; `{}` is all of them. Where it names no
    states, those count in which the change is of use. `progress` is called after each page. A
    page is all or nothing: interrupted or repeated, such a call does nothing twice.
    """

    def cancel_all(
        self,
        where: RunFilters,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Ask all runs of a filter to end; see `SyncClient.cancel`.

        ```python
        done = client.cancel_all({"names": "checkout"}, reason="closed", dry_run=True)
        print(done.changed)
        ```
        """
        return self._call(
            self._target.cancel_all, where, reason=reason, dry_run=dry_run, progress=progress
        )

    def terminate_all(
        self,
        where: RunFilters,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """End all runs of a filter at once, without their code; see `SyncClient.terminate`.

        ```python
        done = client.terminate_all({"tags": "trial", "states": "stuck"})
        print(done.changed, "of", done.matched)
        ```
        """
        return self._call(
            self._target.terminate_all, where, reason=reason, dry_run=dry_run, progress=progress
        )

    def pause_all(
        self,
        where: RunFilters,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Let all runs of a filter do nothing more until they are resumed; see `SyncClient.pause`.

        Runs that are started later are not paused: `pause_workflow` and `pause_queue` do that.

        ```python
        client.pause_all({"names": "checkout", "tags": "mail"}, reason="no mail today")
        ```
        """
        return self._call(
            self._target.pause_all, where, reason=reason, dry_run=dry_run, progress=progress
        )

    def resume_all(
        self,
        where: RunFilters,
        *,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Let all paused runs of a filter go on; see `SyncClient.resume`.

        ```python
        client.resume_all({"names": "checkout"})
        ```
        """
        return self._call(self._target.resume_all, where, dry_run=dry_run, progress=progress)

    def signal_all(
        self,
        where: RunFilters,
        name: str,
        payload: object = None,
        *,
        signal_id: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Send all runs of a filter a signal; see `SyncClient.signal`.

        With a `signal_id` the same call may be made again: each run has the signal once.

        ```python
        client.signal_all({"names": "checkout"}, "prices-changed", signal_id="may")
        ```
        """
        return self._call(
            self._target.signal_all,
            where,
            name,
            payload,
            signal_id=signal_id,
            dry_run=dry_run,
            progress=progress,
        )

    def retry_all(
        self,
        where: RunFilters,
        *,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Retry all runs of a filter that failed or timed out; see `SyncClient.retry`.

        A run that was retried before is left as it is, so the same call may be made again.

        ```python
        done = client.retry_all({"names": "checkout", "since": yesterday})
        print(done.changed, "of", done.matched)
        ```
        """
        return self._call(self._target.retry_all, where, dry_run=dry_run, progress=progress)
