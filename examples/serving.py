"""A server of one's own for a test or an example: any free port, a directory that goes away."""

# --8<-- [start:served]
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def served(*options: str, data: str | None = None) -> Iterator[str]:
    """The URL of a server that runs for as long as the block does."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "fairway", "serve", "--port", "0", *options]
        command += ["--data", data or directory]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                greeting = server.stdout.readline()  # "Fairway serves DIR at http://127.0.0.1:PORT"
                yield greeting.split()[-1]
            finally:
                server.terminate()  # SIGTERM: it drains and closes


# --8<-- [end:served]


def main() -> None:
    import httpx

    with served() as url:
        print(httpx.get(url + "/readyz").json())


if __name__ == "__main__":
    main()
