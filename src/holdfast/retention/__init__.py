"""The archive: ended runs, written to objects before the sweeper deletes them."""

from holdfast.retention.archive import Archive, ArchiveEntry, open_archive
from holdfast.retention.reading import ArchivedRun

__all__ = ["Archive", "ArchiveEntry", "ArchivedRun", "open_archive"]
