"""A workflow behind a server, started, awaited and looked at from another process."""

import os
from pathlib import Path

from serving import served

# --8<-- [start:client]
from fairway.client import Client


def steer(url: str) -> None:
    with Client(url) as client:
        run = client.workflows.start("etl", {"day": "monday"}, key="monday")
        print(client.workflows.wait(run.id, 60))
        for task in client.workflows.run(run.id).tasks:
            print(f"{task.name}: {task.state}")


# --8<-- [end:client]


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # where the server finds workflows
    with served("workflows:app") as url:
        steer(url)
