"""Durable Streams: byte and JSON streams with forks, producers and a lifetime, kept as topics."""
