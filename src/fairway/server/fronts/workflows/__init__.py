"""Workflows and schedules over HTTP."""
