"""Whether what is pushed has `nan` or `inf` in it, for which JSON has no number. Pure.

Values stay objects inside a process, so nothing encodes them on their way in, and most are small
records that come often: how to look is decided once, by the type of a source.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import inspect

from fairway.wire.encoding import check_finite

if TYPE_CHECKING:
    from collections.abc import Callable

    Check: TypeAlias = Callable[[Any], None]

_RECORDS: Final = (inspect.StructType, inspect.DataclassType)
_WITH_FIELDS: Final = (*_RECORDS, inspect.NamedTupleType, inspect.TypedDictType)
_WITHOUT: Final = (
    *(inspect.NoneType, inspect.BoolType, inspect.IntType, inspect.StrType),
    *(inspect.BytesType, inspect.ByteArrayType, inspect.MemoryViewType, inspect.RawType),
    *(inspect.DateTimeType, inspect.DateType, inspect.TimeType, inspect.TimeDeltaType),
    *(inspect.UUIDType, inspect.DecimalType, inspect.EnumType, inspect.LiteralType),
)
"""What is no float and holds none."""


def finite_check(type: Any) -> Check | None:
    """What raises `ValueError` for a value of this type with such a number in it; None if the type
    has no place for one."""
    info = inspect.type_info(type)
    if not _may_hold(info, []):
        return None
    if isinstance(info, inspect.FloatType):
        return _check_float
    if isinstance(info, _RECORDS):
        floats = [one.name for one in info.fields if isinstance(one.type, inspect.FloatType)]
        rest = [one for one in info.fields if not isinstance(one.type, inspect.FloatType)]
        if not any(_may_hold(one.type, []) for one in rest):
            return _check_of_record(info.cls, floats)
    return check_finite


def _check_float(value: Any) -> None:
    if not isfinite(value):
        check_finite(value)


def _check_of_record(cls: type, floats: list[str]) -> Check:
    """For a record whose floats are fields of its own: only those are looked at."""

    def check(value: Any) -> None:
        if type(value) is not cls or not _all_finite(value, floats):
            check_finite(value)

    return check


def _all_finite(value: Any, floats: list[str]) -> bool:
    try:
        for name in floats:
            if not isfinite(getattr(value, name)):
                return False
    except (TypeError, OverflowError):
        return False  # something else than a float is there, which nobody has checked
    return True


def _may_hold(info: inspect.Type, seen: list[type]) -> bool:
    if isinstance(info, _WITHOUT):
        return False
    if isinstance(info, inspect.UnionType):
        return any(_may_hold(each, seen) for each in info.types)
    if isinstance(info, inspect.DictType):
        return _may_hold(info.value_type, seen)
    if isinstance(info, inspect.TupleType):
        return any(_may_hold(each, seen) for each in info.item_types)
    if isinstance(info, inspect.CollectionType):
        return _may_hold(info.item_type, seen)
    if isinstance(info, _WITH_FIELDS):
        if info.cls in seen:
            return False
        seen.append(info.cls)
        return any(_may_hold(each.type, seen) for each in info.fields)
    return True  # a float, or nobody knows
