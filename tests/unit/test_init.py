"""`import fairway` stays cheap: what it loads is checked here, what it costs by `make bench`."""

from __future__ import annotations

import json
import subprocess
import sys

ASK = """
import json, sys
before = set(sys.modules)
import fairway
print(json.dumps(sorted(set(sys.modules) - before)))
"""

# Libraries that `import fairway` may load because every use of Fairway needs them at once.
WELCOME: set[str] = set()

# Parts of the standard library that cost milliseconds and that only some uses need.
COSTLY = {"ctypes", "email", "http", "multiprocessing", "sqlite3", "unittest", "urllib", "xml"}


def loaded_by_import() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", ASK], check=True, stdout=subprocess.PIPE, text=True
    )
    names: list[str] = json.loads(done.stdout)
    return names


def test_import_loads_no_backend_and_nothing_costly() -> None:
    loaded = loaded_by_import()
    assert "fairway" in loaded
    rarely = ("fairway.testing", "fairway.storage.wals.")
    assert [name for name in loaded if name.startswith(rarely)] == []
    tops = {name.partition(".")[0] for name in loaded} - {"fairway"} - WELCOME
    assert tops - set(sys.stdlib_module_names) == set(), "a library is imported eagerly"
    assert tops & COSTLY == set(), "a costly part of the standard library is imported eagerly"
