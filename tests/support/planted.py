"""Bugs that are planted to prove that a simulation sees them.

A bug must be seen by what it does to somebody, not because it no longer fits the code that it
breaks: such a bug proves nothing, and is refused.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ACCIDENTS = (TypeError, AttributeError, NameError)
"""What code raises that was written against other code."""


class Drifted(AssertionError):
    """A planted bug does not fit what it breaks any more."""


@contextmanager
def plant(owner: Any, name: str, bug: Any) -> Iterator[None]:
    """Replace `owner.name` by `bug`, which takes what it takes. Raises `Drifted` if it does not."""
    where = f"{owner.__name__}.{name}"
    wanted, found = _parameters(getattr(owner, name)), _parameters(bug)
    if found is not None and wanted is not None and found != wanted:
        raise Drifted(f"{where} takes {wanted}, and the bug planted there {found}")
    accidents: list[BaseException] = []

    @functools.wraps(bug)
    def watched(*args: Any, **options: Any) -> Any:
        try:
            given = bug(*args, **options)
        except ACCIDENTS as error:
            accidents.append(error)
            raise
        return awaited(given) if inspect.iscoroutine(given) else given

    async def awaited(given: Any) -> Any:
        try:
            return await given
        except ACCIDENTS as error:
            accidents.append(error)
            raise

    with patch.object(owner, name, watched):
        try:
            yield
        finally:
            if accidents:
                raise Drifted(f"the bug planted at {where} raised {accidents[0]!r}")


def expect_seen(
    simulate: Callable[..., None],
    bug: Callable[[], Any],
    broken: type[BaseException],
    *,
    histories: int,
) -> str:
    """Some history of so many breaks a promise because of the bug; which promise that is."""
    for seed in range(histories):
        try:
            simulate(seed, mutate=bug)
        except broken as caught:
            for cause in _causes(caught):
                if isinstance(cause, ACCIDENTS):
                    raise Drifted(f"{caught} was seen only by {cause!r}") from caught
            return str(caught)
    pytest.fail(f"{histories} histories did not notice")


def _parameters(function: Any) -> list[str] | None:
    """The names of what it takes, in order; None if it takes anything."""
    found = inspect.signature(function).parameters.values()
    if any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in found):
        return None
    return [each.name for each in found]


def _causes(error: BaseException) -> list[BaseException]:
    """An error, and all that led to it."""
    found: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or each in found:
            continue
        found.append(each)
        left.append(each.__cause__)
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
    return found
