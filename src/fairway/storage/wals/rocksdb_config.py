"""The file in which rocksdict keeps its settings, and which it writes anew whenever it opens.

It needs nothing that is in it: its settings come with the call. But it writes before it looks at
the store, also without the right to write. So what stands there, which may be another file of the
store under the wrong name, is kept aside until it is known that the store is sound.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME: Final = "rocksdict-config.json"
WRITTEN: Final = b'{"raw_mode":true,"prefix_extractors":{}}'


@contextmanager
def kept(home: Path) -> Iterator[None]:
    """Whatever is written to the config of the store in `home` meanwhile, it is as it was after.

    Moved rather than copied: a process that is killed in here leaves it aside, and the next one
    puts it back. Not if it is what rocksdict will write again: on a full disk there may be no room
    for a second one.
    """
    config, aside = home / NAME, home / f"{NAME}.kept"
    if not os.path.lexists(aside):
        if _usual(config):
            yield
            return
        if os.path.lexists(config):
            config.rename(aside)
    try:
        yield
    finally:
        config.unlink(missing_ok=True)
        if os.path.lexists(aside):
            aside.rename(config)


def _usual(config: Path) -> bool:
    try:
        with config.open("rb") as file:
            return file.read(len(WRITTEN) + 1) == WRITTEN
    except OSError:
        return False
