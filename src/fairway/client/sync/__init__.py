# Generated from aio/__init__.py: edit that one, then run `make client`.
"""A face of the client. `aio` is written by hand, and `tools/blocking.py` makes `sync` of it."""
