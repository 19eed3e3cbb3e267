"""Jobs in PostgreSQL: `store` is the `JobStore`, the modules beside it are its nouns."""

from fairway.jobs.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
