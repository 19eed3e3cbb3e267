"""Numbers in configurations: every configuration of the product refuses what can be none."""

from __future__ import annotations

import ast
import dataclasses
import math
import types
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

import fairway
from fairway.core.amounts import WHOLE_MAX, check_shares, check_whole
from fairway.errors import FairwayError, InvalidConfig
from fairway.runtime.amounts import COUNT_MAX, LENGTH_MAX_NS, check_amounts, count, length_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE: Final = Path(fairway.__file__).parent
NAMED: Final = ("Config", "Limits", "Budget", "Quota")
NO_NUMBERS: Final = [math.nan, math.inf, -1, True, "5", 2**70]

SIGNED: Final = {"TopicConfig.priority"}
"""Fields that may be below 0."""
NOT_CONFIGURED: Final = {
    "RouterConfig": "two names and a filter: it has no number",
    "fairway.graphs.checkpoint": "made from the declarations of a graph, which are checked",
}
"""Classes, or all of a module, that nobody gives a number, and why."""


def configurations() -> Iterator[type]:
    """The classes of the product that a configuration is made of, by their names."""
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(("fairway", *path.relative_to(SOURCE).with_suffix("").parts))
        if module.startswith("fairway.client.sync"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith(NAMED):
                found = getattr(import_module(module), node.name)
                if not node.name.startswith("_") and not issubclass(found, Exception):
                    yield found


def numeric_fields(config: type) -> Iterator[tuple[str, int]]:
    """Each field that is a number, with 0; or, of a tuple of numbers, with how many it has."""
    for name, annotation in get_type_hints(config).items():
        kinds = [annotation]
        if get_origin(annotation) in (Union, types.UnionType):
            kinds = list(get_args(annotation))
        for kind in kinds:
            if kind in (int, float):
                yield name, 0
            elif get_origin(kind) is tuple and set(get_args(kind)) <= {int, float}:
                yield name, len(get_args(kind))


CONFIGURATIONS: Final = [
    config
    for config in configurations()
    if not {config.__name__, config.__module__} & NOT_CONFIGURED.keys()
]
FIELDS: Final = [
    pytest.param(config, name, width, id=f"{config.__module__}.{config.__name__}.{name}")
    for config in CONFIGURATIONS
    for name, width in numeric_fields(config)
]


def made(config: type, name: str, value: object) -> object:
    """With one field set. A message is made as it arrives, which is when it is checked."""
    if config.__module__.startswith("fairway.wire."):
        return msgspec.convert({name: value}, config)
    return config(**{name: value})


def refusal(config: type) -> type[Exception]:
    """What a configuration raises, as its documentation says."""
    if config.__module__.startswith("fairway.wire."):
        return msgspec.ValidationError
    if config.__module__.startswith("fairway.core."):
        return ValueError  # core knows none of our errors
    if config.__module__ == "fairway.jobs.job":
        return FairwayError
    return InvalidConfig


def test_every_kind_of_configuration_is_found() -> None:
    found = {config.__name__ for config in CONFIGURATIONS}
    assert found >= {
        *("BackoffConfig", "LaneLimits", "LeaseConfig", "PressureConfig"),
        *("FeederConfig", "HttpLimits", "Quota", "ReaderConfig", "RetentionConfig", "RetryConfig"),
        *("TopicConfig", "TopicsConfig", "TurnBudget", "WorkerConfig", "WriterConfig"),
    }
    assert len(FIELDS) > 100


@pytest.mark.parametrize("config", CONFIGURATIONS, ids=lambda config: config.__qualname__)
def test_what_a_configuration_has_by_itself_is_accepted(config: type) -> None:
    kept = config()
    if dataclasses.is_dataclass(kept):
        assert dataclasses.replace(kept) == kept


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize(("config", "name", "width"), FIELDS)
def test_what_can_be_no_number_of_a_configuration_is_refused(
    config: type, name: str, width: int, value: Any
) -> None:
    if value == -1 and f"{config.__name__}.{name}" in SIGNED:
        assert getattr(made(config, name, value), name) == value
        return
    given = [value]
    if width:
        usual = getattr(config(), name)
        given = [(*usual[:at], value, *usual[at + 1 :]) for at in range(width)]
        given += [value, (*usual, 1)]
    for each in given:
        with pytest.raises(refusal(config), match=name):
            made(config, name, each)


class Config:
    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


def test_an_error_names_the_field_and_its_value() -> None:
    for value, complaint in (
        (0, "wait_ns is at least 1, not 0"),
        (True, "wait_ns is a whole number, not True"),
        ("5", "wait_ns is a whole number, not '5'"),
        (LENGTH_MAX_NS + 1, "wait_ns is at most a hundred years, not "),
        (10**5_000, "wait_ns is at most 9,223,372,036,854,775,807, not one of 16,610 bits"),
        (object(), "wait_ns is a whole number, not a object"),
    ):
        with pytest.raises(InvalidConfig) as refused:
            check_amounts(Config(wait_ns=value), wait_ns=1)
        assert str(refused.value).startswith(complaint)


def test_the_bound_of_a_field_is_that_of_its_unit() -> None:
    most = Config(
        a_ns=LENGTH_MAX_NS, a_ms=LENGTH_MAX_NS // 10**6, bytes_max=WHOLE_MAX, items=COUNT_MAX
    )
    check_amounts(most, a_ns=0, a_ms=0, bytes_max=0, items=0)
    for name, value in vars(most).items():
        with pytest.raises(InvalidConfig, match=f"{name} is at most"):
            check_amounts(Config(**{name: value + 1}), **{name: 0})
    check_amounts(Config(items=COUNT_MAX + 1), count_max=WHOLE_MAX, items=0)


def test_core_raises_what_it_knows() -> None:
    check_whole(Config(items=1), items=1)
    check_shares(Config(rise=0, fall=1.0), "rise", "fall")
    with pytest.raises(ValueError, match="items is at least 1, not 0"):
        check_whole(Config(items=0), items=1)
    for value in (math.nan, 1.1, -0.1, True, "much"):
        with pytest.raises(ValueError, match="rise"):
            check_shares(Config(rise=value), "rise")


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0], ids=repr)
def test_what_is_no_length_of_time_is_refused(value: Any) -> None:
    with pytest.raises(InvalidConfig, match="a pause"):
        length_ns("a pause", value)
    if value != 0:
        with pytest.raises(InvalidConfig, match="a pause"):
            length_ns("a pause", value, zero=True)
    assert length_ns("a pause", 0, zero=True) == 0
    assert length_ns("a pause", 1.5) == 1_500_000_000


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_what_is_no_count_is_refused(value: Any) -> None:
    with pytest.raises(InvalidConfig, match="capacity"):
        count("capacity", value)
    assert count("capacity", 1) == 1
    with pytest.raises(InvalidConfig, match="capacity is at least 1, not 0"):
        count("capacity", 0)
