"""HTTP, SSE and WebSocket in front of an app: who may ask, what is answered, and how."""
