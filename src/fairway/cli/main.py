"""The commands by name. Each is imported when it is called: `--help` stays fast."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

import click

from fairway.masking import mask_tracebacks

COMMANDS: Final = {
    "serve": ("fairway.cli.serve", "serve", "Run the server."),
    "worker": ("fairway.cli.worker", "worker", "Work on the jobs of an app."),
    "workflow": ("fairway.cli.workflow", "workflow", "Start workflows and look at their runs."),
    "topic": ("fairway.cli.topic", "topic", "Append to topics, read and follow them."),
    "jobs": ("fairway.cli.jobs", "jobs", "Enqueue jobs, look at them and steer them."),
    "graph": ("fairway.cli.graph", "graph", "Look at graphs, fire and steer them."),
    "router": ("fairway.cli.router", "router", "Copy records from one topic to another."),
}


class LazyGroup(click.Group):
    """A group that imports a command only when it is needed."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command. Output that cannot be written is told in a line."""
        try:
            return super().main(*args, **options)
        except OSError as error:
            if not _is_of_output(error):
                raise
            _let_go_of_output()
            with suppress(OSError):
                click.echo(f"Error: the output cannot be written: {error.strerror}", err=True)
            sys.exit(1)

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[name]
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in COMMANDS.items()])


def _is_of_output(error: OSError) -> bool:
    """Whether it was met by what writes for people, which opens no files of theirs."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return str(where).partition(".")[0] in ("click", "rich")


def _let_go_of_output() -> None:
    """What is left of it goes nowhere: or Python would write it once more when it ends."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fairway")
def main() -> None:
    """Durable topics and jobs on one fair scheduler. Overload costs latency, never data."""
    mask_tracebacks()
