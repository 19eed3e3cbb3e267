"""Durable Streams: byte and JSON streams over plain HTTP, kept as topics of the same engine."""
