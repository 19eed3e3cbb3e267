"""A graph behind a server, pushed to, fired and steered from another process."""

import os
from pathlib import Path

from serving import served

# --8<-- [start:client]
from fairway.client import Client


def steer(url: str) -> None:
    with Client(url) as client:
        client.graphs.push("cooling", "limits", {"celsius": 8.0})
        client.graphs.push("cooling", "readings", {"room": "cellar", "celsius": 6.5})
        print(client.graphs.fire("cooling").outputs)
        client.graphs.pause("cooling")
        print(client.graphs.state("cooling").paused, client.graphs.resume("cooling").state)


# --8<-- [end:client]


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # where the server finds first_graph
    with served("first_graph:app") as url:
        steer(url)
