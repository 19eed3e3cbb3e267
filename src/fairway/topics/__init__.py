"""Durable topics: append, diff, watch and route, delivered fairly. See `topics.Topics`."""
