"""Who may ask, and how much: keys, tickets, quotas and the audit of commands."""
