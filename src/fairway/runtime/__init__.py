"""The only owner of clock, tasks, threads and signals."""
