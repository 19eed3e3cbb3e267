"""Programs for contributors; nothing of this is installed."""
