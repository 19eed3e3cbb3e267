"""The commands by name. Each is imported when it is called: `--help` stays fast."""

from __future__ import annotations

from importlib import import_module
from typing import Final

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


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fairway")
def main() -> None:
    """Durable topics and jobs on one fair scheduler. Overload costs latency, never data."""
    mask_tracebacks()
