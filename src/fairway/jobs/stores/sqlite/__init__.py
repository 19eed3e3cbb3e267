"""Jobs in one SQLite file: `store` is the `JobStore`, the modules beside it are its nouns."""

from fairway.jobs.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
