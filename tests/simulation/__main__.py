"""`make sim`: run simulated histories of the log, one seed after the other, until stopped."""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter

from tests.simulation.log_sim import Broken, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this seed and stop")
    parser.add_argument("--count", type=int, help="stop after so many seeds")
    options = parser.parse_args()
    if options.seed is not None:
        first, count = options.seed, options.count or 1
    else:
        first, count = random.SystemRandom().randrange(2**32), options.count or sys.maxsize
    tally: Counter[str] = Counter()
    print(f"first seed {first}", flush=True)
    done = 0
    try:
        for done in range(1, count + 1):
            simulate(first + done - 1, tally)
            if done % 500 == 0:
                print(f"{done:,} histories, none broken", flush=True)
    except Broken as broken:
        print(f"seed {first + done - 1} broke a promise: {broken}")
        print(f"replay with: make sim SEED={first + done - 1}")
        return 1
    except KeyboardInterrupt:
        done -= 1
    print(f"{done:,} histories, none broken. How often each event occurred:")
    for event, times in sorted(tally.items()):
        print(f"  {times:>12,}  {event}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
