"""Durable jobs, state machines and workflows in a database."""
