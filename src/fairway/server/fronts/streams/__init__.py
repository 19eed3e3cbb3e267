"""Durable Streams in HTTP: what is asked and answered under `/v1/stream/`; nothing of storage."""
