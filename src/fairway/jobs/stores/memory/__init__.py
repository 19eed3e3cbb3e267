"""Jobs in the memory of this process: `store` is the `JobStore`."""

from fairway.jobs.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
