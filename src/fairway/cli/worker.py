"""`fairway worker`: jobs of an app, and nothing else, until a stop is requested."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import click

from fairway.cli.remote import DURATION
from fairway.cli.serve import INTERRUPTED, BadData, load_app, log_to_stderr
from fairway.client import AsyncClient, ServerTopics
from fairway.errors import BadPlace, FairwayError, InvalidConfig
from fairway.jobs.attempts import LOG_BYTES_MAX
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.worker import WorkerConfig
from fairway.masking import masked
from fairway.runtime.service import StopSwitch, running, stop_on_signals
from fairway.runtime.usercode import run_process
from fairway.server.worker_endpoint import WorkerEndpoint
from fairway.settings import ClientSettings, read_client_settings, server_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.app import Fairway

MS_NS: Final = 1_000_000


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME[=CONCURRENCY]",
    help="A queue to work on; may be given several times. [default: all the app declares]",
)
@click.option("--concurrency", type=int, default=10, show_default=True, help="Jobs at once.")
@click.option("--prefetch", type=int, default=0, show_default=True, help="Claimed beyond those.")
@click.option("--min-demand", type=int, default=1, show_default=True, help="Least room to ask for.")
@click.option("--poll-interval", type=DURATION, default="1s", show_default=True)
@click.option("--max-poll-interval", type=DURATION, default="5s", show_default=True)
@click.option("--lease-ttl", type=DURATION, default="60s", show_default=True)
@click.option("--heartbeat-interval", type=DURATION, default="20s", show_default=True)
@click.option("--reap-interval", type=DURATION, default="30s", show_default=True)
@click.option("--drain-timeout", type=DURATION, default="5s", show_default=True)
@click.option("--threads", type=int, default=10, show_default=True, help="For synchronous jobs.")
@click.option("--processes", type=int, default=4, show_default=True, help="For isolated jobs.")
@click.option(
    "--log-bytes",
    type=int,
    default=LOG_BYTES_MAX,
    show_default=True,
    help="Kept of what a run logs, with its attempt; 0 keeps nothing.",
)
@click.option("--server", metavar="URL", help="The server whose topics the jobs use.")
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Answer /metrics, /healthz and /readyz there; port 0 takes any free one. [default: off]",
)
@click.option(
    "--allow-insecure", is_flag=True, help="Show metrics beyond loopback: there are no keys."
)
def worker(
    app: str, server: str | None, metrics: str | None, allow_insecure: bool, **options: Any
) -> None:
    """Work on jobs until Ctrl-C; a second Ctrl-C ends it at once.

    MODULE:APP is the Fairway object that declares them. Several workers may run on one machine, or
    on many where the jobs live in PostgreSQL. A worker never opens the log: topics are used through
    the running server at --server or FAIRWAY_SERVER.

    \b
    fairway worker shop:app                             every queue of the app
    fairway worker shop:app --queue mail=50 --queue default
    fairway worker shop:app --concurrency 500 --prefetch 500     many small jobs
    fairway worker shop:app --metrics 9100              metrics at http://127.0.0.1:9100/metrics
    """
    log_to_stderr()
    try:
        made = load_app(app)
        config = config_of(made, **options)
        endpoint = endpoint_of(made, metrics, allow_insecure) if metrics is not None else None
        run(made, config, read_client_settings(server_of(server)), endpoint)
    except BadPlace as error:
        raise BadData(masked(error)) from None
    except FairwayError as error:
        raise click.ClickException(masked(error)) from None


def config_of(
    app: Fairway, *, queues: Sequence[str], concurrency: int, **options: Any
) -> WorkerConfig:
    """What the options say, for the queues that were named or that the app declares."""
    feeding = {
        "prefetch": options.pop("prefetch"),
        "min_demand": options.pop("min_demand"),
        "poll_interval_ns": options.pop("poll_interval") * MS_NS,
        "max_poll_interval_ns": options.pop("max_poll_interval") * MS_NS,
    }
    feeders = {}
    for text in queues or app.queues:
        name, equals, count = text.partition("=")
        if equals and not (count.isascii() and count.isdigit()):
            raise InvalidConfig(f"--queue {text}: the concurrency is a number")
        feeders[name] = FeederConfig(concurrency=int(count) if equals else concurrency, **feeding)
    if not feeders:
        raise InvalidConfig("the app declares no jobs, so there is nothing to work on")
    return WorkerConfig(
        queues=feeders,
        lease_ttl_ns=options.pop("lease_ttl") * MS_NS,
        heartbeat_interval_ns=options.pop("heartbeat_interval") * MS_NS,
        reap_interval_ns=options.pop("reap_interval") * MS_NS,
        drain_timeout_ns=options.pop("drain_timeout") * MS_NS,
        **options,
    )


def endpoint_of(app: Fairway, address: str, allow_insecure: bool) -> WorkerEndpoint:
    """The endpoint at `[HOST:]PORT`."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise InvalidConfig(f"--metrics {address}: an address is [HOST:]PORT, such as 9100")
    return WorkerEndpoint(app.telemetry, host, int(port), allow_insecure=allow_insecure)


def run(
    app: Fairway,
    config: WorkerConfig,
    server: ClientSettings,
    endpoint: WorkerEndpoint | None = None,
) -> None:
    """Work until a stop is requested."""
    run_process(_work(app, config, server, endpoint))


async def _work(
    app: Fairway, config: WorkerConfig, server: ClientSettings, endpoint: WorkerEndpoint | None
) -> None:
    stop = StopSwitch()
    with stop_on_signals(stop):
        async with running(_EndAtOnce(stop)), AsyncExitStack() as stack:
            if endpoint is not None:  # first in, last out: it shows the start and the drain
                await stack.enter_async_context(endpoint)
            client = AsyncClient(server.url, key=server.key)
            await stack.enter_async_context(client)
            working = app.working(config, topics=ServerTopics(client))
            app.wait_for_job_store = True
            try:
                async with asyncio.timeout(None) as start, running(_EndStart(stop, start)):
                    part = await stack.enter_async_context(working)
            except TimeoutError:
                if start.expired():
                    return  # the stop was requested while it waited for its database
                raise
            banner = f"Fairway works on {', '.join(config.queues)}"
            if endpoint is not None and part.worker is not None:
                endpoint.readiness = part.worker.readiness
                banner += f"    {endpoint.url}/metrics"
            click.echo(f"{banner}    Ctrl-C stops.")
            await stop.wait_requested()


class _EndStart:
    """The stop was requested before anything began: there is nothing to drain."""

    def __init__(self, stop: StopSwitch, start: asyncio.Timeout) -> None:
        self._stop = stop
        self._start = start

    async def run(self) -> None:
        await self._stop.wait_requested()
        self._start.reschedule(0)  # its time has passed


class _EndAtOnce:
    """The stop was requested twice: end like a crash, which loses nothing."""

    def __init__(self, stop: StopSwitch) -> None:
        self._stop = stop

    async def run(self) -> None:
        await self._stop.wait_forced()
        os._exit(INTERRUPTED)
