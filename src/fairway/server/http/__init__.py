"""How requests come in and answers go out: the protocol, the router, streams, and their bounds."""
