"""Load for a server in another process: children, HTTP clients on bare protocols, watchers."""
