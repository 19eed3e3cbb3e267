"""What the governor does at each pressure, as it decides it."""

from fairway.core.pressure import Governor


# --8<-- [start:ladder]
def ladder_at(pressure: float) -> str:
    governor = Governor()
    ladder = governor.sample({"load": pressure}, ingest_full=True)
    for _ in range(200):  # long enough for the smoothed pressure to get there
        ladder = governor.sample({"load": pressure}, ingest_full=True)
    return (
        f"{pressure:.2f}  coalesce {ladder.coalesce_window_ns / 1e6:5.2f} ms"
        f"  commit {ladder.commit_window_ns / 1e6:5.2f} ms"
        f"  defer {ladder.defer!s:5}  refuse {ladder.refuse}"
    )


for pressure in (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
    print(ladder_at(pressure))
# --8<-- [end:ladder]
