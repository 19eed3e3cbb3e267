"""Numbered changes of the tables, applied in order."""
