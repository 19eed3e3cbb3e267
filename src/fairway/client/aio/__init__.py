"""A face of the client. `aio` is written by hand, and `tools/blocking.py` makes `sync` of it."""
