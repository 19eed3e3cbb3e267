"""The `fairway` command, also as `python -m fairway`."""

from __future__ import annotations

import sys
from typing import Final

LASTING: Final = ("serve", "worker")
"""Commands that end in order, with status 0, when they are told to stop."""


def run() -> None:
    if sys.argv[1:2] and sys.argv[1] in LASTING:
        from fairway.runtime.early_stop import end_on_signals

        end_on_signals()
    from fairway.cli import main

    main()


if __name__ == "__main__":
    run()
