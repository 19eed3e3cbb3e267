"""Topics and routers over HTTP, server-sent events and WebSocket."""
