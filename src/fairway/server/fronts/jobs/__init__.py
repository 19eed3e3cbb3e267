"""Jobs and queues over HTTP."""
