"""What every simulation has in common: promises, and how one is found to be broken."""

from __future__ import annotations


class Broken(AssertionError):
    """A promise did not hold."""


def demand(held: bool, promise: str) -> None:
    if not held:
        raise Broken(promise)


def broken_by(several: BaseExceptionGroup[BaseException], otherwise: str) -> Broken:
    """The promise that several errors broke; if none did, that something died of them."""
    found = several.subgroup(Broken)
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found or Broken(f"{otherwise}: {several!r}")
