"""Graphs over HTTP, server-sent events and WebSocket."""
