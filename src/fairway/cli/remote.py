"""What commands that talk to a server share: where it is, and how its errors are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairway.client import Client, RetryConfig
from fairway.errors import FairwayError, Unauthorized, Unreachable
from fairway.masking import masked
from fairway.settings import parse_bytes, parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

INTERRUPTED = 130
"""The exit code of Ctrl-C, as shells have it."""


class Interrupted(click.ClickException):
    """Ctrl-C, told in a line or not at all."""

    exit_code = INTERRUPTED

    def show(self, file: Any = None) -> None:
        if self.message:
            click.echo(self.message, err=True)


class RemoteGroup(click.Group):
    """A group whose commands talk to a server: every error is one line."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            raise Interrupted("") from None
        except FairwayError as error:
            raise click.ClickException(explained(error)) from None
        except UnicodeEncodeError as error:  # an argument of bytes that are no UTF-8
            raise click.ClickException(f"{error.object!r} is no text that can be sent") from None


class Remote:
    """The server that the options of the group name."""

    def __init__(self, url: str | None, key: str | None) -> None:
        self._url = url
        self._key = key

    def client(self) -> Client:
        """A client that reports a missing server at once, and is patient with one that was met."""
        return Client(self._url, self._key, retry=RetryConfig(wait_for_server=False))


pass_remote = click.make_pass_decorator(Remote)


def remote_options(command: F) -> F:
    """`--url` and `--key`, which the environment can give as well."""
    url = click.option(
        "--url", help="The server. [env: FAIRWAY_URL; default: http://127.0.0.1:4000]"
    )
    key = click.option(
        "--key",
        "--api-key",
        "api_key",
        help="An API key. [env: FAIRWAY_API_KEY, which other users of the machine do not see]",
    )
    return url(key(command))


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(
        command
    )


def explained(error: FairwayError) -> str:
    """An error in one line, with what to do about it if that is known."""
    text = " ".join(masked(error).split())
    if isinstance(error, Unreachable):
        return f"{text}; start one with: fairway serve"
    if isinstance(error, Unauthorized):
        return f"{text}; give a key with --key or FAIRWAY_API_KEY"
    return text


class _Amount(click.ParamType[int]):
    """A number with a unit."""

    def __init__(self, name: str, parse: Callable[[str], int]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> int:
        try:
            return value if isinstance(value, int) else self._parse(value)
        except ValueError as error:
            self.fail(str(error), parameter, context)


DURATION = _Amount("duration", parse_duration_ms)
SIZE = _Amount("size", parse_bytes)
