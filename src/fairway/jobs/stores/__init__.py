"""The stores that hold jobs, a folder each.

The same thing has the same file name in every folder: `store` (the `JobStore`), `schema` (tables
and their migrations), `connections`, `ready_lines` (their numbers), `intake` (jobs come in),
`within` (in a caller's transaction), `claiming`, `settling`, `heartbeat`, `upkeep` (timers, workers
that died, aging, forgetting), `browsing` (looking at jobs) and `timetable`.
"""
